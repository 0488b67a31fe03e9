"""One sequence of an answer: token ids in, text out, until the engine or a stop string ends it."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.serving.detokenizer import Detokenizer, StopStrings
from engine.serving.http.timeline import Timeline, Token
from engine.serving.request import SamplingParams, TokenLogprobs


@dataclass(frozen=True)
class Wishes:
    """What an answer holds beside the generated text: the prompt's text before it (echo), the ids; output:
    False leaves the generated text out."""

    token_ids: bool = False
    echo: bool = False
    output: bool = True


class Choice:
    """tokens: generated so far, the one that ends the choice included; finish: stop or length, once it has
    ended; news: something was added since the last `take`; repeat: which of the answers to its prompt it
    is; first_at, first_tokens: when the first tokens came (monotonic seconds, as submitted_at), and how
    many."""

    def __init__(
        self, index: int, repeat: int, prompt_ids: list[int], params: SamplingParams,
        detokenizer: Detokenizer, wishes: Wishes,
    ) -> None:  # fmt: skip
        self.index = index
        self.repeat = repeat
        self.prompt_ids = prompt_ids
        self.params = params
        self.wishes = wishes
        self.request_id = -1
        self.submitted_at = 0.0
        self.first_at: float | None = None
        self.first_tokens = 0
        self.tokens = 0
        self.cached_tokens = 0
        self.finish: str | None = None
        self.news = False
        self.taken_before = False
        self._detokenizer = detokenizer
        self._push = detokenizer.push
        self._stops = StopStrings(params.stop) if params.stop else None
        self._timeline = Timeline() if wishes.token_ids or params.logprobs is not None else None
        self._echo_due = wishes.echo
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._text: list[str] = []
        self._shown = 0

    def add(
        self,
        token_ids: Sequence[int],
        finish: str | None,
        logprobs: Sequence[TokenLogprobs] = (),
        prompt_logprobs: Sequence[TokenLogprobs] = (),
    ) -> None:
        """Take in what the engine tells. A stop string may end the choice before the engine does.

        The log probabilities of a prompt may come in pieces, all of them no later than the first token.
        """
        self._prompt_logprobs += prompt_logprobs
        if not token_ids and finish is None:
            return
        self.news = True
        if self._echo_due:
            self._echo()
        if not self.wishes.output:
            finish = finish and "length"
        else:
            # The end-of-sequence or stop token is counted, never shown.
            to_show = len(token_ids) - (finish == "stop")
            if self._stops is None and self._timeline is None:
                self.tokens += len(token_ids)
                self._text += map(self._push, token_ids[:to_show])
            elif self._add_each(token_ids, to_show, logprobs or [None] * len(token_ids)):
                self.finish = "stop"
                return
        if finish is not None:
            self._end(finish)

    def take(self) -> tuple[str, list[Token]]:
        """The text added since the last time, and the tokens that belong to it where those are wished for."""
        text = self._text[0] if len(self._text) == 1 else "".join(self._text)
        self._text.clear()
        self.news, self.taken_before = False, True
        if self._timeline is None:
            return text, []
        self._shown += len(text)
        return text, self._timeline.take(self._shown, self.finish is not None)

    @property
    def shown(self) -> int:
        """Characters taken so far, where tokens are wished for."""
        return self._shown

    def _echo(self) -> None:
        self._echo_due = False
        texts = list(map(self._push, self.prompt_ids))
        self._text += texts
        if self._timeline is not None:
            # Nothing precedes the first token that could make it probable.
            known = [None, *(self._prompt_logprobs or [None] * (len(texts) - 1))]
            for token_id, text, logprobs in zip(self.prompt_ids, texts, known, strict=True):
                self._timeline.add(token_id, text, logprobs, generated=False)
        self._prompt_logprobs.clear()

    def _add_each(
        self, token_ids: Sequence[int], to_show: int, logprobs: Sequence[TokenLogprobs | None]
    ) -> bool:
        """Whether a stop string was met; what came after it is dropped. None is met in the text of the first
        min_tokens tokens but the last of these."""
        for at, (token_id, its_logprobs) in enumerate(zip(token_ids, logprobs, strict=True)):
            self.tokens += 1
            text = self._push(token_id) if at < to_show else ""
            if self._timeline is not None:
                self._timeline.add(token_id, text, its_logprobs)
            stopped = False
            if self._stops is not None and self.tokens >= self.params.min_tokens:
                text, stopped = self._stops.push(text)
            self._text.append(text)
            if stopped:
                return True
        return False

    def _end(self, finish: str) -> None:
        text = self._detokenizer.finish()
        if self._stops is not None:
            text, stopped = self._stops.push(text)
            finish = "stop" if stopped else finish
            text += self._stops.finish()
        self._text.append(text)
        self.finish = finish
