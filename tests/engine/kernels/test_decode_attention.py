"""rotated_decode_attention against rotation, KV write and plain attention one by one."""

import pytest
import torch

from engine.kernels import decode_attention
from engine.kernels.decode_attention import Tiles, rotated_decode_attention, splits, tiles
from engine.kernels.rope import rope_and_write_reference
from tests.engine.kernels.measured import Place, assert_as_exact, take_turns
from tests.engine.kernels.steps import PAD_ROWS, Heads, Sequence, Step, plain_attention, step

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning"),
]
DECODES = [
    Sequence(130, 1),
    Sequence(0, 1),
    Sequence(15, 1),
    Sequence(16, 1),
    Sequence(64, 1),
    Sequence(257, 1),
]


def decode_step(place: Place, heads: Heads, sequences: list[Sequence], table_width: int = 24) -> Step:
    """Item i is row i; the last rows are padding."""
    made = step(place, heads, sequences, longest_item=1, table_width=table_width)
    numbers = [1] * len(sequences) + [0] * PAD_ROWS
    items = torch.tensor(list(enumerate(numbers)), dtype=torch.int32, device=place.device)
    return Step(**(vars(made) | {"items": items}))


def check(place: Place, heads: Heads, sequences: list[Sequence], table_width: int = 24) -> None:
    made = decode_step(place, heads, sequences, table_width)
    rows = len(sequences)
    qkv = place.normal(rows + PAD_ROWS, (heads.heads + 2 * heads.kv_heads) * heads.dim)
    angles = torch.randn(table_width * made.block_size, heads.dim // 2, dtype=torch.float64).repeat(1, 2)
    cos, sin = (f(angles).to(place.device, place.dtype) for f in (torch.cos, torch.sin))
    own = made.block_table[made.slots, made.positions // 16] * 16 + made.positions % 16
    for cache in (made.k_cache, made.v_cache):
        cache[own[:rows]] = float("nan")  # nobody may read what is still to be written
    pads = own[rows:]
    k_cache, v_cache = made.k_cache.clone(), made.v_cache.clone()
    arrivals = torch.zeros(len(qkv) * heads.kv_heads, dtype=torch.int32, device=place.device)

    out = rotated_decode_attention(
        qkv, cos, sin, made.positions, own, made.slots, made.items, made.block_table, 16,
        k_cache, v_cache, heads.heads, arrivals,
    )  # fmt: skip

    query = rope_and_write_reference(
        qkv[:rows], cos, sin, made.positions[:rows], own[:rows], made.k_cache, made.v_cache, heads.heads
    )
    expected = Step(**(vars(made) | {"query": torch.cat((query, torch.zeros_like(out[rows:])))}))
    # Sums of wide products may be contracted; roundings to 16 bits stand between them.
    tolerance = 0 if place.dtype.itemsize == 2 else 4 * torch.finfo(place.dtype).eps
    torch.testing.assert_close(k_cache, made.k_cache, rtol=tolerance, atol=tolerance, equal_nan=True)
    assert torch.equal(v_cache.nan_to_num(7), made.v_cache.nan_to_num(7))
    assert pads.numel() and k_cache[pads].isnan().all()
    assert (out[rows:] == 0).all()
    assert (arrivals == 0).all()
    items = made.items[:rows]
    trimmed = Step(**(vars(expected) | {"items": items}))
    assert_as_exact(out, plain_attention(trimmed, place.dtype), plain_attention(trimmed, torch.float64))


HEADS = [Heads(3, 3, 64), Heads(6, 2, 64), Heads(4, 1, 128), Heads(8, 1, 80), Heads(2, 2, 80)]
LONG_HEADS = [Heads(3, 1, 64), Heads(2, 2, 64)]


@pytest.mark.parametrize("heads", HEADS)
def test_decode_rows(place: Place, heads: Heads) -> None:
    take_turns(place, HEADS.index(heads))
    check(place, heads, DECODES * (20 if place.large else 1))


@pytest.mark.parametrize("heads", LONG_HEADS)
def test_long_histories_are_split_and_combined(place: Place, heads: Heads) -> None:
    take_turns(place, LONG_HEADS.index(heads))
    sequences = [Sequence(1025, 1), Sequence(0, 1), Sequence(70, 1), Sequence(448, 1)]
    assert splits(len(sequences) + PAD_ROWS, heads.kv_heads, 256 * 16) == 16
    check(place, heads, sequences, table_width=256)


def first_row(place: Place, made: Step, qkv: torch.Tensor, rows: int, part: int | None) -> torch.Tensor:
    """The first of so many rows' result; each has its own sequence."""
    table_width, heads = made.block_table.shape[1], LONG_HEADS[0]
    angles = torch.linspace(0, 3, table_width * 16 * heads.dim, dtype=torch.float64).view(-1, heads.dim)
    cos, sin = (f(angles).to(place.device, place.dtype) for f in (torch.cos, torch.sin))
    own = made.block_table[made.slots, made.positions // 16] * 16 + made.positions % 16
    arrivals = torch.zeros(rows * heads.kv_heads, dtype=torch.int32, device=place.device)
    out = rotated_decode_attention(
        qkv[:rows], cos, sin, made.positions[:rows], own[:rows], made.slots[:rows], made.items[:rows],
        made.block_table, 16, made.k_cache.clone(), made.v_cache.clone(), heads.heads, arrivals, part,
    )  # fmt: skip
    return out[0]


def test_fixed_parts_give_a_row_the_same_bits_in_any_company(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_attention, "_MANY", 16)  # few rows then change the number of parts
    heads, rows = LONG_HEADS[0], 8
    made = decode_step(place, heads, [Sequence(700, 1)] + [Sequence(1, 1)] * (rows - 1), table_width=64)
    qkv = place.normal(rows, (heads.heads + 2 * heads.kv_heads) * heads.dim)
    alone, together = (first_row(place, made, qkv, count, part=256) for count in (1, rows))
    assert torch.equal(alone, together)
    if place.dtype.itemsize > 2:  # roundings to 16 bits hide most of what the order of sums does
        alone, together = (first_row(place, made, qkv, count, part=None) for count in (1, rows))
        assert not torch.equal(alone, together)


def test_one_part_where_programs_are_many() -> None:
    assert [splits(batch, 12, 4096) for batch in (1, 2, 8, 32, 256)] == [16, 16, 4, 1, 1]
    assert [splits(1, 8, history) for history in (64, 512, 1024, 131072)] == [1, 2, 4, 16]


def test_many_programs_are_small() -> None:
    assert tiles(12, 1, 64, 2) == Tiles(positions=64, warps=4, stages=1, product=False)
    assert tiles(12, 3, 64, 2) == Tiles(positions=128, warps=4, stages=4)
    assert tiles(528, 1, 64, 2) == tiles(528, 4, 64, 2) == Tiles(positions=32, warps=1, stages=3)
    assert tiles(12, 4, 128, 8).positions == 16
