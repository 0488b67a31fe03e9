"""Prompts of token ids with exact lengths, which compress well and share only what they are meant to share.

A schedule file is committed with the numbers measured from it, so its prompts must not be incompressible
noise: each is a serial of a few ids and then a slice of one base sequence.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator

from harness.workload.declared import IdRange, PrefixGroupPrompts
from harness.workload.recorded import BLOCK_TOKENS, Row
from harness.workload.streams import named_stream, uniform_int

BASE_IDS = 1_024
DISTINCT_SERIALS = 2**56
"""With so many, two schedules of 100,000 prompts share a serial with a chance of 3 in 10**12."""
BLOCK_STRIDE = 389
"""Odd, so that consecutive blocks start at all places of the base sequence."""


class IdTexts:
    """Texts of token ids: number k of a schedule starts with the serial of k, which no other number, name or
    seed has, its fastest changing id first; then follows the base sequence from `offset`, repeated."""

    def __init__(self, declared: IdRange, name: str, seed: int) -> None:
        self._low, high = declared.ids
        self._radix = high - self._low
        self.serial_ids = next(n for n in itertools.count(1) if self._radix**n >= DISTINCT_SERIALS)
        stream = named_stream(seed, "base ids")
        base = [uniform_int(stream, self._low, high - 1) for _ in range(BASE_IDS)]
        self._base = base + base
        self._name = f"{seed}:{name}"

    def first_number(self, use: str) -> int:
        """Where the numbers of one use ("requests", "prefixes", "blocks") start."""
        digest = hashlib.sha256(f"{self._name}:{use}".encode()).digest()
        return int.from_bytes(digest, "big") % self._radix**self.serial_ids

    def text(self, number: int, offset: int, length: int) -> list[int]:
        """Exactly `length` ids. One that is shorter than a serial has only the start of it."""
        serial = []
        for _ in range(self.serial_ids):
            number, digit = divmod(number, self._radix)
            serial.append(self._low + digit)
        rest = max(length - self.serial_ids, 0)
        turns = self._base[offset : offset + BASE_IDS] * (rest // BASE_IDS + 1)
        return serial[:length] + turns[:rest]


def different_prompts(texts: IdTexts, seed: int, lengths: Iterable[int]) -> Iterator[list[int]]:
    """A prompt of each length; no two share a cache block. Offsets from the stream "prompts"."""
    stream = named_stream(seed, "prompts")
    first = texts.first_number("requests")
    for place, length in enumerate(lengths):
        yield texts.text(first + place, uniform_int(stream, 0, BASE_IDS - 1), length)


def prefix_group_prompts(
    texts: IdTexts, seed: int, declared: PrefixGroupPrompts, lengths: Iterable[int]
) -> Iterator[list[int]]:
    """The prefix of a group drawn evenly (stream "groups"), then the prompt's own part of each length."""
    stream, first = named_stream(seed, "groups"), texts.first_number("prefixes")
    for own in different_prompts(texts, seed, lengths):
        group = uniform_int(stream, 0, declared.groups - 1)
        yield texts.text(first + group, group * BLOCK_STRIDE % BASE_IDS, declared.prefix_tokens) + own


def block_prompts(texts: IdTexts, rows: Iterable[Row]) -> Iterator[list[int]]:
    """Prompts in which equal block ids of the trace are equal token ids: prefixes repeat as recorded."""
    first = texts.first_number("blocks")
    for row in rows:
        ids: list[int] = []
        for block in row.blocks:
            length = min(BLOCK_TOKENS, row.prompt_tokens - len(ids))
            ids += texts.text(first + block, block * BLOCK_STRIDE % BASE_IDS, length)
        yield ids
