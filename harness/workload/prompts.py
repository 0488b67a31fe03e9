"""The English prompts of the repository: prompts.jsonl, one {"id", "prompt"} a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

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
