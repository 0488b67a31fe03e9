"""What a paged step reads of its Plan: integers packed on the host, padded to a shape that graphs exist for.

Host and device share one layout, so that a single copy carries everything.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Generic, TypeVar

import numpy as np
import torch

from engine.serving.plan import Chunk, Plan
from engine.serving.tables import aligned

# The place of a row that computes its slot's newest token, whose position the device alone knows.
NEWEST = -1

Words = TypeVar("Words", np.ndarray, torch.Tensor)


def rows_of(plan: Plan) -> int:
    """Tokens that a step computes."""
    return len(plan.decodes) + sum(chunk.count for chunk in plan.chunks)


@dataclass(frozen=True)
class Shape:
    """Sizes of a step: rows, attention items, sampled rows, and the most rows an item has."""

    rows: int
    items: int
    samples: int
    longest_item: int

    @staticmethod
    def of(plan: Plan, longest_item: int) -> "Shape":
        """Exactly what a Plan needs; longest_item is that of steps with prompt chunks."""
        longest = longest_item if plan.chunks else 1
        return Shape(
            rows=rows_of(plan),
            items=len(plan.decodes) + sum(-(-chunk.count // longest) for chunk in plan.chunks),
            samples=len(plan.sampled_slots),
            longest_item=longest,
        )

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Of slots, places, items, sample_rows and sample_slots."""
        return self.rows, self.rows, self.items, self.samples, self.samples

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Where each of them begins in the packed inputs."""
        return tuple(accumulate(map(aligned, self.sizes[:-1]), initial=0))

    @cached_property
    def words(self) -> int:
        """Words of the packed inputs."""
        return self.starts[-1] + aligned(self.samples)


@dataclass(frozen=True)
class StepInputs(Generic[Words]):
    """slots, places: (rows,), a row's slot and its position, or NEWEST. items: (items,), the first row in the
    lower half of the word and the number of rows in the upper one. sample_rows, sample_slots: (samples,), the
    rows after which a token is chosen, and their slots. All int64, on the host or on the device.
    """

    slots: Words
    places: Words
    items: Words
    sample_rows: Words
    sample_slots: Words

    @staticmethod
    def of(words: Words, shape: Shape) -> "StepInputs[Words]":
        """Views of a buffer of at least shape.words."""
        places = zip(shape.starts, shape.sizes, strict=True)
        return StepInputs(*(words[first : first + size] for first, size in places))

    def clear(self, pad_slot: int) -> None:
        """Make every row one of the pad slot, without attention, and sample nothing."""
        self.slots[:] = pad_slot
        self.places[:] = NEWEST
        self.items[:] = 0
        self.sample_rows[:] = 0
        self.sample_slots[:] = pad_slot


def pack(plan: Plan, shape: Shape, pad_slot: int, words: np.ndarray) -> None:
    """Write the Plan's inputs into words: (>= shape.words,) int64. Results come in the Plan's order."""
    words[: shape.words] = _cleared(shape, pad_slot)
    decodes = len(plan.decodes)
    slots, _, items, sample_rows, sample_slots = shape.starts
    words[slots : slots + decodes] = words[sample_slots : sample_slots + decodes] = plan.decodes
    every, single = _single_rows(shape.samples)
    words[items : items + decodes] = single[:decodes]
    words[sample_rows : sample_rows + decodes] = every[:decodes]
    if plan.chunks:
        _pack_chunks(plan.chunks, shape.longest_item, StepInputs.of(words, shape), decodes)


@lru_cache(maxsize=256)
def _cleared(shape: Shape, pad_slot: int) -> np.ndarray:
    """The packed inputs of a step without effect."""
    words = np.zeros(shape.words, np.int64)
    StepInputs.of(words, shape).clear(pad_slot)
    return words


@lru_cache(maxsize=256)
def _single_rows(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows 0 … count-1, and the items that each have one of them."""
    every = np.arange(count)
    return every, _item(every, 1)


def _pack_chunks(chunks: Sequence[Chunk], longest: int, inputs: StepInputs[np.ndarray], row: int) -> None:
    """The rows of the chunks from `row` on; as many items and samples stand before them."""
    slots, starts, counts, samples = np.array([(c.slot, c.start, c.count, c.sample) for c in chunks]).T
    ends = row + counts.cumsum()
    firsts = ends - counts
    rows = slice(row, ends[-1])
    inputs.slots[rows] = np.repeat(slots, counts)
    inputs.places[rows] = np.arange(row, ends[-1]) + np.repeat(starts - firsts, counts)
    pieces = -(-counts // longest)
    piece = np.arange(pieces.sum()) - np.repeat(pieces.cumsum() - pieces, pieces)
    first = np.repeat(firsts, pieces) + piece * longest
    inputs.items[row : row + len(first)] = _item(first, np.minimum(longest, np.repeat(ends, pieces) - first))
    sampling = samples.nonzero()[0]
    inputs.sample_rows[row : row + len(sampling)] = ends[sampling] - 1
    inputs.sample_slots[row : row + len(sampling)] = slots[sampling]


def _item(first: np.ndarray, number: np.ndarray | int) -> np.ndarray:
    return first + (number << 32)
