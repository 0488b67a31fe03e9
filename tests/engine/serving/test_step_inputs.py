"""The packed inputs of a step against a plain loop, and the shapes that cover every step."""

import random
from itertools import pairwise

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.serving.graphs import decode_shapes, mixed_shapes
from engine.serving.plan import Chunk, Features, Plan
from engine.serving.step_inputs import NEWEST, Shape, StepInputs, pack, rows_of

PAD = 999
GREEDY = Features.union([])
NOTHING = np.zeros((0, 3), np.int64)


def random_plan(rng: random.Random, sequences: int, budget: int) -> Plan:
    """Up to `sequences` slots and `budget` rows, at least one of them."""
    slots = rng.sample(range(PAD), rng.randint(1, min(sequences, budget)))
    decodes, chunks, left = [], [], budget
    for position, slot in enumerate(slots):
        after = len(slots) - 1 - position
        if rng.random() < 0.5:
            decodes.append(slot)
            left -= 1
        else:
            count = rng.randint(1, min(left - after, 40))
            chunks.append(Chunk(slot, rng.randint(0, 9), count, rng.random() < 0.7))
            left -= count
    return Plan((), NOTHING, np.array(decodes, np.int64), 50, tuple(chunks), GREEDY)


def looped(plan: Plan, longest: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]], list[int]]:
    """(slot, place) of each row, (first, number) of each item, and the sampled rows."""
    rows = [(slot, NEWEST) for slot in plan.decodes]
    items = [(i, 1) for i in range(len(rows))]
    samples = list(range(len(rows)))
    for chunk in plan.chunks:
        for at in range(0, chunk.count, longest):
            items.append((len(rows) + at, min(longest, chunk.count - at)))
        rows += [(chunk.slot, chunk.start + i) for i in range(chunk.count)]
        if chunk.sample:
            samples.append(len(rows) - 1)
    return rows, items, samples


@pytest.mark.parametrize("longest", [1, 4, 7])
@pytest.mark.parametrize("more", [0, 3])
def test_packed_inputs_equal_a_plain_loop(longest: int, more: int) -> None:
    rng = random.Random(longest)
    for _ in range(200):
        plan = random_plan(rng, sequences=8, budget=64)
        exact = Shape.of(plan, longest)
        assert exact.longest_item == (longest if plan.chunks else 1)
        shape = Shape(exact.rows + more, exact.items + more, exact.samples + more, exact.longest_item)
        words = np.full(shape.words, -7)
        pack(plan, shape, PAD, words)
        inputs = StepInputs.of(words, shape)
        rows, items, samples = looped(plan, longest)
        assert list(zip(inputs.slots, inputs.places, strict=True)) == rows + [(PAD, NEWEST)] * more
        assert list(map(tuple, inputs.items.view(np.int32).reshape(-1, 2))) == items + [(0, 0)] * more
        assert list(inputs.sample_rows) == samples + [0] * more
        assert list(inputs.sample_slots) == plan.sampled_slots.tolist() + [PAD] * more


@pytest.mark.parametrize(
    ("sequences", "budget", "longest"),
    [(256, 2048, 64), (8, 16, 5), (1, 300, 64), (24, 24, 1), (300, 700, 3)],
)
def test_every_step_fits_into_a_shape_of_its_kind(sequences: int, budget: int, longest: int) -> None:
    config = EngineConfig("cpu", "float32", 128, 64, max_num_seqs=sequences, max_batched_tokens=budget)
    decode, mixed = decode_shapes(config), mixed_shapes(config, longest)
    rng = random.Random(sequences)
    for shapes in (decode, mixed):
        assert [shape.rows for shape in shapes] == sorted({shape.rows for shape in shapes})
    assert decode[-1].rows == sequences
    assert mixed[-1].rows == budget
    for _ in range(300):
        plan = random_plan(rng, sequences, budget)
        need = Shape.of(plan, longest)
        shape = next(s for s in (mixed if plan.chunks else decode) if s.rows >= rows_of(plan))
        assert need.items <= shape.items and need.samples <= shape.samples
        assert need.longest_item == shape.longest_item


def test_the_most_items_there_can_be_fit() -> None:
    """Every sequence of the largest step ends with an item of one row."""
    longest, sequences = 64, 31
    chunks = tuple(Chunk(slot, 0, longest + 1, True) for slot in range(sequences))
    plan = Plan((), NOTHING, np.zeros(0, np.int64), 0, chunks, GREEDY)
    config = EngineConfig(
        "cpu", "float32", 128, 64, max_num_seqs=sequences, max_batched_tokens=sequences * (longest + 1)
    )
    need, largest = Shape.of(plan, longest), mixed_shapes(config, longest)[-1]
    assert (need.items, need.samples) == (2 * sequences, sequences) == (largest.items, largest.samples)


def test_the_default_sizes_have_few_shapes_and_pad_little() -> None:
    config = EngineConfig("cuda", "bfloat16", 2048, 1024)
    decode, mixed = decode_shapes(config), mixed_shapes(config, longest_item=64)
    assert (len(decode), len(mixed)) == (13, 16)
    for shapes, most in ((decode, 0.5), (mixed, 0.25)):
        for smaller, larger in pairwise(shapes):
            if smaller.rows >= (16 if shapes is decode else 256):
                assert larger.rows <= smaller.rows * (1 + most)
