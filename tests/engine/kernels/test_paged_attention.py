"""paged_attention: the kernel and the reference against plain attention, row by row."""

import pytest
import torch

from engine.kernels import paged_attention as module
from engine.kernels.paged_attention import (
    kv_splits,
    paged_attention,
    paged_attention_reference,
    paged_attention_triton,
    rows_per_item,
    tile_positions,
    tile_rows,
)
from tests.engine.kernels.measured import Place, assert_as_exact, take_turns
from tests.engine.kernels.steps import PAD_ROWS, Heads, Sequence, Step, plain_attention, step

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:divide by zero encountered in log2"),
]

DECODES = [Sequence(130, 1), Sequence(0, 1), Sequence(15, 1), Sequence(16, 1), Sequence(63, 1, shared=3)]
MIXED = [Sequence(33, 1), Sequence(0, 40), Sequence(17, 21, shared=1), Sequence(127, 2), Sequence(5, 1)]
SMALL = [Sequence(20, 5), Sequence(3, 1)]


def check(place: Place, made: Step) -> None:
    out = paged_attention_triton(*made.arguments())
    assert out.is_contiguous()
    assert (out[-PAD_ROWS:] == 0).all()
    assert_as_exact(out, plain_attention(made, place.dtype), plain_attention(made, torch.float64))


@pytest.mark.parametrize("heads", [Heads(3, 3, 64), Heads(6, 2, 64), Heads(4, 1, 128), Heads(8, 1, 80)])
def test_decode_rows(place: Place, heads: Heads) -> None:
    check(place, step(place, heads, DECODES * (12 if place.large else 1), longest_item=1))


CHUNK_HEADS = [Heads(2, 2, 64), Heads(9, 3, 64), Heads(8, 1, 80), Heads(4, 1, 128)]
ITEM_LENGTHS = [2, 7, 40, 100]


@pytest.mark.parametrize("heads", CHUNK_HEADS)
def test_chunks_and_decode_rows(place: Place, heads: Heads) -> None:
    take_turns(place, CHUNK_HEADS.index(heads))
    longest = rows_per_item(heads.heads, heads.kv_heads)
    check(place, step(place, heads, MIXED * (12 if place.large else 1), longest))


@pytest.mark.parametrize("longest_item", ITEM_LENGTHS)
def test_items_of_any_length(place: Place, longest_item: int) -> None:
    take_turns(place, ITEM_LENGTHS.index(longest_item))
    check(place, step(place, Heads(4, 2, 16), MIXED, longest_item))


@pytest.mark.parametrize("block_size", [1, 12, 64, 256])
def test_any_block_size(place: Place, block_size: int) -> None:
    check(place, step(place, Heads(3, 1, 24), SMALL, 5, block_size, table_width=30))


@pytest.mark.parametrize("group", [5, 16, 20, 71])
def test_any_number_of_heads_a_group(place: Place, group: int) -> None:
    check(place, step(place, Heads(group, 1, 32), SMALL, 3))


@pytest.mark.parametrize("longest_item", [1, 6])
def test_split_histories(place: Place, longest_item: int) -> None:
    """Short ones leave parts empty; of 253 … 258 the first rows see nothing of the part from 256 on."""
    sequences = [Sequence(253, longest_item), Sequence(0, longest_item), Sequence(70, longest_item)]
    heads = Heads(2, 1, 128)
    made = step(place, heads, sequences, longest_item, table_width=256)
    assert kv_splits(len(made.items) * heads.kv_heads, 256 * 16) == 8
    check(place, made)


def test_a_tile_of_one_row_before_a_long_history_splits_nothing_away(place: Place) -> None:
    check(place, step(place, Heads(1, 1, 64), [Sequence(0, 1)], 1, table_width=512))


def test_values_of_other_rows_do_not_matter(place: Place) -> None:
    """A row's result is the same bits whatever else the step computes, splits being equal."""
    made = step(place, Heads(4, 2, 32), MIXED, 8)
    whole = paged_attention_triton(*made.arguments())
    alone = made.items.clone()
    alone[1:, 1] = 0
    first, number = made.items[0].tolist()
    part = paged_attention_triton(*(alone if a is made.items else a for a in made.arguments()))
    assert torch.equal(part[first : first + number], whole[first : first + number])
    assert (part[first + number :] == 0).all()


def test_fixed_parts_give_a_row_the_same_bits_in_any_company(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PROCESSORS", 8)  # few rows then change the number of parts
    made = step(place, Heads(2, 1, 32), [Sequence(1030, 1)] + [Sequence(1, 1)] * 7, 1, table_width=70)

    def first_row(items: torch.Tensor, part: int | None) -> torch.Tensor:
        given = (items if a is made.items else a for a in made.arguments())
        return paged_attention_triton(*given, part_positions=part)[0]

    assert torch.equal(first_row(made.items[:1], part=256), first_row(made.items, part=256))
    if place.dtype.itemsize > 2:  # roundings to 16 bits hide most of what the order of sums does
        assert not torch.equal(first_row(made.items[:1], part=None), first_row(made.items, part=None))


def test_large_scores(place: Place) -> None:
    made = step(place, Heads(2, 1, 64), DECODES[:3], 1)
    made.query.mul_(60)
    exact = plain_attention(made, torch.float64)
    torch.testing.assert_close(paged_attention_triton(*made.arguments()).double(), exact, rtol=0, atol=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("longest_item", [1, 16])
def test_cpu_tensors_take_the_reference(dtype: torch.dtype, longest_item: int) -> None:
    torch.manual_seed(0)
    sequences = DECODES if longest_item == 1 else MIXED
    made = step(Place("cpu", dtype), Heads(6, 2, 80), sequences, longest_item)
    out = paged_attention(*made.arguments())
    assert torch.equal(out, paged_attention_reference(*made.arguments()))
    assert_as_exact(out, plain_attention(made, dtype), plain_attention(made, torch.float64))


def test_tiles() -> None:
    assert [tile_rows(group, 1, 2) for group in (1, 3, 8, 20, 71)] == [16, 16, 16, 32, 128]
    assert [tile_rows(3, longest, 2) for longest in (5, 6, 21, 500)] == [16, 32, 64, 64]
    assert tile_rows(3, 500, 4) == 16
    assert [rows_per_item(*heads) for heads in ((12, 12), (9, 3), (8, 1), (100, 1))] == [64, 21, 8, 2]
    assert [tile_positions(dim, size) for dim, size in ((64, 2), (128, 2), (256, 2), (64, 4))] == [
        128,
        64,
        32,
        64,
    ]
    assert tile_positions(512, 8) == 16


@pytest.mark.parametrize(
    ("programs", "longest_history", "splits"),
    [
        (1, 511, 1),
        (1, 2048, 4),
        (1, 131072, 32),
        (12, 8192, 16),
        (66, 8192, 4),
        (96, 8192, 2),
        (132, 8192, 1),
    ],
)
def test_splits_fill_the_processors(programs: int, longest_history: int, splits: int) -> None:
    assert kv_splits(programs, longest_history) == splits


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("longest_item", [1, 64])
@pytest.mark.parametrize("table_width", [24, 256])
def test_captured_once_for_all_lengths(longest_item: int, table_width: int) -> None:
    """A graph replays with other lengths, items and queries; no size but the grid's belongs to the kernel."""
    torch.manual_seed(0)
    place, heads = Place("cuda", torch.bfloat16), Heads(4, 4, 64)

    def made(lengths: list[tuple[int, int]]) -> Step:
        sequences = [Sequence(before, min(longest_item, rows)) for before, rows in lengths]
        return step(place, heads, sequences, longest_item, table_width=table_width)

    first, last = made([(4, 40), (137, 3), (31, 60)]), made([(100, 40), (7, 3), (0, 60)])
    paged_attention_triton(*first.arguments())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = paged_attention_triton(*first.arguments())
    for mine, other in zip(first.arguments(), last.arguments(), strict=True):
        if isinstance(mine, torch.Tensor):
            mine[: len(other)].copy_(other)
    graph.replay()
    assert_as_exact(out, plain_attention(last, place.dtype), plain_attention(last, torch.float64))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_batch_size_and_alignment_compile_nothing_new() -> None:
    torch.manual_seed(0)
    place, heads = Place("cuda", torch.bfloat16), Heads(4, 4, 64)

    def compiled(sequences: list[Sequence], table_width: int, odd: bool) -> int:
        made = step(place, heads, sequences, 64, table_width=table_width)
        shifted = {
            name: torch.cat((value[:1].flatten()[:1], value.flatten()))[1:].view(value.shape)
            for name, value in vars(made).items()
            if odd and name in ("block_table", "slots", "positions", "items")
        }
        paged_attention_triton(*Step(**(vars(made) | shifted)).arguments())
        return len(module._attention_kernel.device_caches[torch.cuda.current_device()][0])

    before = compiled(MIXED * 40, 24, odd=False)
    assert compiled(MIXED * 41, 25, odd=True) == before
    assert compiled(MIXED * 48, 32, odd=False) == before
