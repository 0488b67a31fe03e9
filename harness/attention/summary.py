"""Rows of attention.csv put together for readers: VALID repetitions by panel, implementation and shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from harness.attention.plan import IMPLEMENTATIONS
from harness.schema import AttentionRow

Key = tuple[str, str, int]
MEMORY = "memory"
"""The sweep of the stage file whose point is peak_mib."""


@dataclass(frozen=True)
class Panel:
    """What stands side by side: one sweep, direction and head size. `lines` has the repetitions of each
    implementation at each (batch, seq), by rising seq and then batch; `shapes` those of any."""

    sweep: str
    direction: str
    head_dim: int
    shapes: list[tuple[int, int]]
    lines: dict[str, dict[tuple[int, int], list[AttentionRow]]]

    def mean(self, impl: str, shape: tuple[int, int], column: str) -> float | None:
        """Geometric mean over the repetitions; None where there is none that is VALID."""
        values = [getattr(row, column) for row in self.lines[impl].get(shape, [])]
        known = [value for value in values if value]
        return geometric_mean(known) if known else None


def panels(rows: Sequence[AttentionRow]) -> list[Panel]:
    """Sweeps in the order of the rows, head sizes and directions of each together; implementations in their
    own order, with an empty line where no row is VALID."""
    sweeps = list(dict.fromkeys(row.sweep for row in rows))
    grouped: dict[Key, list[AttentionRow]] = {}
    for row in rows:
        grouped.setdefault((row.sweep, row.direction, row.head_dim), []).append(row)
    ordered = sorted(grouped, key=lambda key: (sweeps.index(key[0]), -key[2]))
    return [_panel(key, grouped[key]) for key in ordered]


def _panel(key: Key, rows: list[AttentionRow]) -> Panel:
    shapes = sorted({(row.batch, row.seq) for row in rows}, key=lambda shape: shape[::-1])
    impls = sorted({row.impl for row in rows}, key=IMPLEMENTATIONS.index)
    lines: dict[str, dict[tuple[int, int], list[AttentionRow]]] = {impl: {} for impl in impls}
    for row in sorted(rows, key=lambda row: (row.seq, row.batch, row.repetition)):
        if row.verdict == "VALID":
            lines[row.impl].setdefault((row.batch, row.seq), []).append(row)
    return Panel(*key, shapes, lines)


def invalid_lines(rows: Sequence[AttentionRow]) -> list[str]:
    """Why rows are INVALID, a line a case, implementation and direction."""
    found = {
        f"{row.case}, {row.impl} {row.direction}: INVALID: {row.reasons}": None
        for row in rows
        if row.verdict != "VALID"
    }
    return list(found)
