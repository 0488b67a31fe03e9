"""Offline generation: the engine in this process, many prompts at once.

with LLM("smollm2-135m") as llm:
    for output in llm.generate(["Once upon a time", [1, 2, 3]], SamplingParams(max_tokens=32)):
        print(output.text, output.finish_reason)
"""

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from engine.config import ConfigError
from engine.model.named import prepare
from engine.model.tokenizer_file import load_tokenizer
from engine.serving.detokenizer import Detokenizer, StopStrings, detokenizer_factory
from engine.serving.engine import Engine
from engine.serving.request import Finish, SamplingParams, TokenLogprobs, Update
from engine.serving.startup import EngineOptions, load_engine


@dataclass
class Output:
    """One finished request. finish_reason: stop, length, or error (logits that were not finite)."""

    prompt_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    cached_tokens: int = 0
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)


@dataclass(frozen=True)
class Piece:
    """What is new of prompt `index`; the last piece of a prompt has the finish_reason."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None


class LLM:
    """A model for batches of prompts, each text or token ids; no other process, no server.

    model: a name or a path as `engine.model.named.prepare` takes it; further keywords are EngineOptions'.
    Usable as a context manager, which frees the model's memory at its end. Not thread-safe.
    """

    def __init__(self, model: str | Path, **options: object) -> None:
        folder = prepare(str(model))
        self.tokenizer = load_tokenizer(folder)
        self._new_detokenizer = detokenizer_factory(self.tokenizer)
        self._engine: Engine | None = load_engine(EngineOptions(model=folder, **options))
        self._ids = count()

    @property
    def engine(self) -> Engine:
        """The engine. Raises ConfigError once the LLM is closed."""
        if self._engine is None:
            raise ConfigError("this LLM is closed")
        return self._engine

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free weights and KV cache."""
        self._engine = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def generate(
        self,
        prompts: Sequence[str | list[int]],
        params: SamplingParams | Sequence[SamplingParams] = SamplingParams(),  # noqa: B008 (frozen)
        progress: bool = True,
    ) -> list[Output]:
        """Outputs in the order of the prompts; `params` for all, or one for each.

        progress: a bar on stderr where that is a terminal or a notebook. Raises ConfigError, before
        anything runs, for a prompt that can never run.
        """
        sequences = self._sequences(prompts, params)
        console = Console(stderr=True)
        shown = progress and (console.is_terminal or console.is_jupyter)
        columns = TextColumn("prompts"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        with Progress(*columns, console=console, transient=True, disable=not shown) as bar:
            task = bar.add_task("prompts", total=len(sequences))
            for piece in self._run(sequences):
                bar.advance(task, piece.finish_reason is not None)
        return [sequence.output for sequence in sequences]

    def stream(
        self,
        prompts: Sequence[str | list[int]],
        params: SamplingParams | Sequence[SamplingParams] = SamplingParams(),  # noqa: B008 (frozen)
    ) -> Iterator[Piece]:
        """Pieces of all prompts as they come. Leaving the loop early cancels what still runs."""
        return self._run(self._sequences(prompts, params))

    def _sequences(
        self, prompts: Sequence[str | list[int]], params: SamplingParams | Sequence[SamplingParams]
    ) -> list["_Sequence"]:
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else params
        if len(each) != len(prompts):
            raise ConfigError(f"{len(prompts)} prompts, but {len(each)} sampling parameters")
        ids = [list(p) if not isinstance(p, str) else self.tokenizer.encode(p).ids for p in prompts]
        for prompt_ids, its_params in zip(ids, each, strict=True):
            self.engine.check_request(prompt_ids, its_params)
        return [
            _Sequence(i, *one, self._new_detokenizer()) for i, one in enumerate(zip(ids, each, strict=True))
        ]

    def _run(self, sequences: list["_Sequence"]) -> Iterator[Piece]:
        running = {next(self._ids): sequence for sequence in sequences}
        for request_id, sequence in running.items():
            self.engine.add(request_id, sequence.output.prompt_ids, sequence.params)
        try:
            while running:
                for update in self.engine.step():
                    if (sequence := running.get(update.request_id)) is None:
                        continue  # ended by a stop string, while steps for it were queued
                    piece = sequence.take(update)
                    if piece.finish_reason is not None:
                        del running[update.request_id]
                        self.engine.cancel(update.request_id)
                    yield piece
        finally:
            for request_id in running:
                self.engine.cancel(request_id)
            while self.engine.has_work:
                self.engine.step()


class _Sequence:
    """One prompt on its way: ids become text, and a stop string may end it before the engine does."""

    def __init__(
        self, index: int, prompt_ids: list[int], params: SamplingParams, detokenizer: Detokenizer
    ) -> None:
        self.params = params
        self.output = Output(prompt_ids)
        self._index = index
        self._detokenizer = detokenizer
        self._stops = StopStrings(params.stop) if params.stop else None

    def take(self, update: Update) -> Piece:
        """Add the engine's news to the output; what of it is new."""
        output = self.output
        output.cached_tokens = update.cached_tokens
        output.logprobs += update.logprobs
        output.prompt_logprobs += update.prompt_logprobs
        text, taken = "", 0
        for token_id in update.token_ids:
            taken += 1
            last = taken == len(update.token_ids) and update.finish is Finish.STOP
            # The token that ends a sequence counts, and is not shown.
            text += "" if last else self._shown(self._detokenizer.push(token_id))
            if output.finish_reason:
                break
        if update.finish is not Finish.NOT_YET and not output.finish_reason:
            text += self._shown(self._detokenizer.finish())
            if self._stops and not output.finish_reason:
                text += self._stops.finish()
            names = {Finish.STOP: "stop", Finish.LENGTH: "length", Finish.BROKEN: "error"}
            output.finish_reason = output.finish_reason or names[update.finish]
        output.text += text
        output.token_ids += update.token_ids[:taken]
        return Piece(self._index, text, update.token_ids[:taken], output.finish_reason)

    def _shown(self, text: str) -> str:
        if self._stops is None or not text:
            return text
        text, stopped = self._stops.push(text)
        if stopped:
            self.output.finish_reason = "stop"
        return text
