"""One sequence of an answer: token ids in, text out, until the engine or a stop string ends it."""

from collections.abc import Sequence

from engine.serving.detokenizer import Detokenizer, StopStrings
from engine.serving.request import SamplingParams


class Choice:
    """tokens: generated so far, the one that ends the choice included; finish: stop or length, once it has
    ended; news: something was added since the last `take`."""

    def __init__(
        self,
        index: int,
        prompt_ids: list[int],
        params: SamplingParams,
        detokenizer: Detokenizer,
        keeps_ids: bool,
    ) -> None:
        self.index = index
        self.prompt_ids = prompt_ids
        self.keeps_ids = keeps_ids
        self.params = params
        self.request_id = -1
        self.tokens = 0
        self.cached_tokens = 0
        self.finish: str | None = None
        self.news = False
        self.taken_before = False
        self._detokenizer = detokenizer
        self._push = detokenizer.push
        self._stops = StopStrings(params.stop) if params.stop else None
        self._text: list[str] = []
        self._ids: list[int] = []

    def add(self, token_ids: Sequence[int], finish: str | None) -> None:
        """Take in what the engine tells. A stop string may end the choice before the engine does."""
        self.news = True
        # The end-of-sequence or stop token is counted, never shown.
        shown = token_ids[:-1] if finish == "stop" else token_ids
        if self._stops is None:
            self._text += map(self._push, shown)
            self._count(token_ids)
        elif stopped_after := self._push_until_stop(shown, self._stops):
            self._count(token_ids[:stopped_after])
            self.finish = "stop"
            return
        else:
            self._count(token_ids)
        if finish is not None:
            self._end(finish)

    def take(self) -> str:
        """The text added since the last time."""
        text = self._text[0] if len(self._text) == 1 else "".join(self._text)
        self._text.clear()
        self.news, self.taken_before = False, True
        return text

    def take_ids(self) -> dict[str, list[int]]:
        """The token ids that go with the next `take`, by their names in the answer."""
        ids, self._ids = self._ids, []
        return (
            {"token_ids": ids}
            if self.taken_before
            else {"prompt_token_ids": self.prompt_ids, "token_ids": ids}
        )

    def _count(self, token_ids: Sequence[int]) -> None:
        self.tokens += len(token_ids)
        if self.keeps_ids:
            self._ids += token_ids

    def _push_until_stop(self, token_ids: Sequence[int], stops: StopStrings) -> int:
        """How many ids it took to meet a stop string; 0 when none was met."""
        for count, token_id in enumerate(token_ids, 1):
            text, stopped = stops.push(self._push(token_id))
            self._text.append(text)
            if stopped:
                return count
        return 0

    def _end(self, finish: str) -> None:
        text = self._detokenizer.finish()
        if self._stops is not None:
            text, stopped = self._stops.push(text)
            finish = "stop" if stopped else finish
            text += self._stops.finish()
        self._text.append(text)
        self.finish = finish
