"""What providers and boxes say is shown on a terminal, which it must not steer."""

from __future__ import annotations


def printable(text: str) -> str:
    """Without what is no sign that can be seen: escape sequences, line breaks, marks of direction."""
    return "".join(sign for sign in text if sign.isprintable() or sign == "\t")
