"""The English prompts of the repository: prompts.jsonl, one {"id", "prompt"} a line, and requests made of
them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.workload.checks import ScheduleError
from harness.workload.streams import named_stream, shuffle

PROMPTS_FILE = Path(__file__).with_name("prompts.jsonl")


class PromptError(ValueError):
    """A prompt file cannot be used; the message names file, line and what is wrong."""


class Prompt(NamedTuple):
    id: str
    text: str


def load_prompts(path: Path = PROMPTS_FILE) -> tuple[Prompt, ...]:
    """All prompts of a file in their order.

    Raises PromptError for a line that is not {"id": text, "prompt": text}, an empty prompt, an id used twice,
    or a file without prompts; OSError when it cannot be read.
    """
    prompts: dict[str, Prompt] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        where = f"{path}, line {number}"
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            raise PromptError(f"{where}: not JSON: {error}") from None
        if not (
            isinstance(entry, dict)
            and entry.keys() == {"id", "prompt"}
            and all(isinstance(value, str) and value.strip() for value in entry.values())
        ):
            raise PromptError(f'{where}: must be {{"id": text, "prompt": text}} with both not empty')
        if entry["id"] in prompts:
            raise PromptError(f"{where}: id {entry['id']!r} was used before")
        prompts[entry["id"]] = Prompt(entry["id"], entry["prompt"])
    if not prompts:
        raise PromptError(f"{path} holds no prompts")
    return tuple(prompts.values())


def shuffled_rounds(texts: Sequence[str], seed: int) -> Iterator[str]:
    """Endless texts of the set, each once a round, every round in an order of its own (stream "prompts")."""
    if not texts:
        raise ScheduleError("the list of prompts is empty; at least 1 is needed")
    stream = named_stream(seed, "prompts")
    while True:
        order = list(range(len(texts)))
        shuffle(stream, order)
        yield from (texts[place] for place in reversed(order))


def timed_prompts(texts: Sequence[str], *, name: str, seed: int) -> Iterator[str]:
    """Endless different prompts: texts in shuffled rounds, each behind a serial line of its own.

    The line ("Request 0042 of NAME-SEED.") comes first, so that two requests share no more than the few
    tokens before their serials part, less than a cache block: no prefix cache can answer one request from
    another, nor from a schedule of another name or seed. Playing the same file again does meet its own
    prompts.
    """
    rounds = shuffled_rounds(texts, seed)
    return (f"Request {serial:04d} of {name}-{seed}.\n\n{next(rounds)}" for serial in itertools.count())
