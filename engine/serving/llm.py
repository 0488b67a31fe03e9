"""Offline generation: the engine in this process, many prompts at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine.model.named import prepare
from engine.model.tokenizer_file import load_tokenizer
from engine.serving.request import Finish, SamplingParams
from engine.serving.startup import EngineOptions, load_engine


@dataclass
class Output:
    """One finished request. finish_reason: stop or length."""

    prompt_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str = ""
    cached_tokens: int = 0


class LLM:
    """A model for batches: `LLM("smollm2-135m").generate(["Hello"], SamplingParams(max_tokens=32))`.

    model: a name or a path as `engine.model.named.prepare` takes it; further keywords are EngineOptions'.
    """

    def __init__(self, model: str | Path, **options: object) -> None:
        folder = prepare(str(model))
        self.tokenizer = load_tokenizer(folder)
        self.engine = load_engine(EngineOptions(model=folder, **options))

    def generate(
        self,
        prompts: Sequence[str | list[int]],
        params: SamplingParams | Sequence[SamplingParams] = SamplingParams(),  # noqa: B008 (frozen)
    ) -> list[Output]:
        """Outputs in the order of the prompts; a list of ids is taken as it is, text is tokenised."""
        outputs = [Output(p if isinstance(p, list) else self.tokenizer.encode(p).ids) for p in prompts]
        each = [params] * len(outputs) if isinstance(params, SamplingParams) else params
        for i, (output, its_params) in enumerate(zip(outputs, each, strict=True)):
            self.engine.add(i, output.prompt_ids, its_params)
        for i, token_ids, finish, cached in self._news():
            outputs[i].token_ids += token_ids
            if finish is not Finish.NOT_YET:
                outputs[i].finish_reason = finish.name.lower()
                outputs[i].cached_tokens = cached
        for output in outputs:
            output.text = self.tokenizer.decode(output.token_ids)
        return outputs

    def _news(self) -> Iterator[tuple[int, list[int], Finish, int]]:
        while self.engine.has_work:
            for update in self.engine.step():
                yield update.request_id, update.token_ids, update.finish, update.cached_tokens
