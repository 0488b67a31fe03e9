"""The stage file, and the order in which its cells are measured."""

from pathlib import Path

import pytest

from harness.attention.formulas import Shape
from harness.attention.plan import OURS, STAGE_FILE, Cell, Timing, interleaved, load_attention_stage
from harness.errors import BadInput

PLAN = load_attention_stage().on("cuda")


def test_repetitions_go_there_and_back():
    cells = tuple(
        Cell("c", impl, "forward", Shape(True, 64, 1, 1, 8, 1)) for impl in ("triton", "flex", "naive")
    )
    assert [(repetition, cell.impl) for repetition, cell in interleaved(cells)] == [
        (0, "triton"), (0, "flex"), (0, "naive"), (1, "naive"), (1, "flex"), (1, "triton"),
    ]  # fmt: skip


def test_the_first_blocks_are_one_of_each_sweep():
    assert [block.sweep for block in PLAN.blocks()[:6]] == [sweep.name for sweep in PLAN.sweeps]


def test_the_sweeps_are_those_of_published_figures():
    cells = [cell for block in PLAN.blocks() for cell in block.cells]
    causal = {(c.shape.head_dim, c.shape.seq): c.shape for c in cells if c.case.startswith("causal-")}
    assert set(causal) == {(dim, 512 << power) for dim in (64, 128) for power in range(6)}
    assert {s.batch * s.seq for s in causal.values()} == {16_384}
    assert {s.heads * s.head_dim for s in causal.values()} == {2048}
    memory = {c.shape.seq: c.shape.batch for c in cells if c.case.startswith("memory-")}
    assert memory == {1024 << power: max(1, 32 >> power) for power in range(8)}
    decode = {(c.shape.batch, c.shape.seq) for c in cells if (c.impl, c.direction) == ("reference", "decode")}
    assert decode == {(batch, seq) for batch in (1, 4, 16) for seq in (128, 512, 2048)}


def test_a_name_stands_for_one_shape_and_no_cell_stands_twice():
    cells = [cell for block in PLAN.blocks() for cell in block.cells]
    assert len(set(cells)) == len(cells)
    shapes = {}
    for cell in cells:
        assert shapes.setdefault(cell.case, cell.shape) == cell.shape


def test_the_fused_step_is_measured_wherever_the_other_is():
    decode = {(cell.case, cell.impl) for b in PLAN.blocks() for cell in b.cells if cell.direction == "decode"}
    cases = {impl: {case for case, other in decode if other == impl} for impl in OURS}
    assert len(cases["triton"]) == 13
    assert all(cases[impl] == cases["triton"] for impl in OURS)
    assert not any(c.impl in OURS[1:] for b in PLAN.blocks() for c in b.cells if c.direction != "decode")


@pytest.mark.parametrize(("warm_ms", "samples"), [(0.5, 20), (8, 10), (500, 4), (0, 20)])
def test_long_runs_are_sampled_less_often(warm_ms, samples):
    timing = Timing(warmups=2, samples=20, least_samples=4, budget_ms=80)
    assert timing.samples_for(int(warm_ms * 1e6)) == samples


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"triton", "varlen"]\ndense', '"triton", "flash4"]\ndense', "implementations.1"),
        (
            "hidden = 2048\nhead_dims = [128, 64]",
            "head_dims = [128, 64]",
            "sweep causal needs either hidden or",
        ),
        ('"triton_invariant", "reference"]\nonly', '"flex"]\nonly', "flex cannot decode"),
        ("least_samples = 4, ", "", "least_samples: Field required"),
    ],
)
def test_a_wrong_file_is_refused_by_the_value_that_is_wrong(tmp_path: Path, old, new, said):
    text = STAGE_FILE.read_text()
    assert text.count(old) == 1
    wrong = tmp_path / "attention.toml"
    wrong.write_text(text.replace(old, new))
    with pytest.raises(BadInput, match=said):
        load_attention_stage(wrong)
