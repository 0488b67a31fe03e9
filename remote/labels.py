"""The label of a rented box: PREFIX/RUN/DEADLINE. It alone tells anyone when the box is overdue."""

from __future__ import annotations

import re
from dataclasses import dataclass

from remote.errors import RemoteError

PREFIX = "llm-ladder"
MAX_LABEL = 60  # as long as other tools are known to use at Vast.ai
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
NAME_RULE = "must be of letters, digits and . _ - and start with a letter or a digit"


@dataclass(frozen=True)
class Label:
    """`deadline`: seconds since the epoch after which the box must not exist."""

    prefix: str
    run: str
    deadline: int

    def __str__(self) -> str:
        return f"{self.prefix}/{self.run}/{self.deadline}"


def make_label(prefix: str, run: str, deadline: int) -> Label:
    """Raises RemoteError when a part cannot be read back from the label, or the label is too long."""
    for what, name in (("prefix", prefix), ("run id", run)):
        if not re.fullmatch(NAME, name):
            raise RemoteError(f"{what} {name!r}: {NAME_RULE}")
    label = Label(prefix, run, deadline)
    if parse_label(str(label)) != label:
        raise RemoteError(f"deadline {deadline}: must have 10 digits (seconds since the epoch)")
    if len(str(label)) > MAX_LABEL:
        raise RemoteError(f"label {label} has {len(str(label))} characters, the limit is {MAX_LABEL}")
    return label


def parse_label(text: str) -> Label | None:
    """None unless the whole text is a label: one with cut digits must not look long overdue."""
    match = re.fullmatch(rf"({NAME})/({NAME})/([1-9]\d{{9}})", text, re.ASCII)
    return Label(match[1], match[2], int(match[3])) if match else None
