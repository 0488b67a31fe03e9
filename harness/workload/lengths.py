"""Lengths in tokens, drawn from the law that a stage declares."""

from __future__ import annotations

from collections.abc import Iterator

from harness.workload.declared import FixedLength, LognormalLength, UniformLength
from harness.workload.streams import lognormal_int, named_stream, uniform_int

DrawnLaw = FixedLength | UniformLength | LognormalLength


def draw(law: DrawnLaw, seed: int, stream_name: str) -> Iterator[int]:
    """Endless lengths from a named stream. What one law draws moves nothing that another stream draws."""
    stream = named_stream(seed, stream_name)
    while True:
        match law:
            case FixedLength():
                yield law.tokens
            case UniformLength():
                yield uniform_int(stream, law.low, law.high)
            case LognormalLength():
                yield min(max(lognormal_int(stream, law.median, law.sigma), law.low), law.high)


def shortest(law: DrawnLaw) -> int:
    return law.tokens if isinstance(law, FixedLength) else law.low


def longest(law: DrawnLaw) -> int:
    return law.tokens if isinstance(law, FixedLength) else law.high
