"""The figure and the README table of the stage `attention`, from a run made by hand."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from figures import attention
from figures.make_figures import drawn_files
from figures.make_tables import result_table
from figures.style import house_style
from harness.attention.plan import load_attention_stage
from harness.schema import AttentionRow
from harness.store import Run
from tests.figures.test_make_figures import texts
from tests.harness.attention.made import make_attention_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_attention_run(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def figure(run: Run) -> Figure:
    with house_style():
        drawn = attention.draw(run)
    assert drawn is not None
    return drawn


def test_a_panel_a_head_size_and_direction_with_units_numbers_and_machine(figure: Figure) -> None:
    shown = texts(figure)
    for direction in ("forward", "backward"):
        for panel in ("D = 128, causal, 16 heads", "D = 64, causal, 32 heads", "D = 64, causal, 12 heads"):
            assert f"{direction}, {panel}" in shown
    assert {"TFLOP/s", "MiB above the inputs", "sequence length (k = 1,024 tokens)"} <= set(shown)
    joined = " ".join(shown)
    assert "n = 9 samples" in joined
    assert "bars: smallest to largest" in joined
    assert "NVIDIA H200, driver 580.159.04" in joined
    assert "not drawn: 8 INVALID rows (naive: out of memory)" in joined
    assert "reached 769 TFLOP/s" in joined


def test_lines_hold_the_mean_of_both_repetitions_and_end_where_memory_does(run: Run, figure: Figure) -> None:
    axes = next(a for a in figure.axes if a.get_title("left") == "forward, D = 64, causal, 32 heads")
    line = axes.lines[0]
    assert list(line.get_xdata()) == [512 << power for power in range(6)]
    of_512 = [
        row.tflops
        for row in run.records(AttentionRow)
        if (row.case, row.impl, row.direction) == ("causal-d64-s512", "triton", "forward")
    ]
    assert line.get_ydata()[0] == pytest.approx((of_512[0] * of_512[1]) ** 0.5)
    memory = next(a for a in figure.axes if a.get_title("left") == "forward, D = 64, causal, 12 heads")
    naive = [line for line in memory.lines if line.get_color() == attention.STYLES["naive"].color]
    assert max(naive[0].get_xdata()) == 32_768


def test_every_implementation_has_a_look_of_its_own() -> None:
    looks = [(style.dashes, style.marker, style.fill) for style in attention.STYLES.values()]
    assert len(set(looks)) == len(looks)


def test_the_same_rows_give_the_same_bytes_and_no_other_figure(tmp_path: Path) -> None:
    blocks = [block for block in load_attention_stage().on("cuda").blocks() if block.sweep == "decode"]
    decode = make_attention_run(tmp_path, blocks=blocks)
    first = drawn_files(decode)
    assert sorted(first) == ["attention.png", "attention.svg"]
    assert drawn_files(decode) == first


def test_the_table_has_valid_means_alone(run: Run) -> None:
    table = result_table(run)
    assert "| head size, implementation | 512 | 1,024 | 2,048 | 4,096 | 8,192 | 16,384 |" in table
    assert "| 128, ours (Triton) | 173 / 156 | 255 / 229 |" in table
    assert "| 128, FlexAttention | – | 183 / 165 | – | – | 310 / 279 | – |" in table
    assert "ours, RoPE and write in" not in table
    assert "Paged decode reaches 56% of the copy rate at 4 x 32,768 tokens." in table


def test_a_run_of_packed_sequences_alone_has_a_table_and_no_figure(tmp_path: Path) -> None:
    blocks = [block for block in load_attention_stage().on("cuda").blocks() if block.sweep == "packed"]
    cut = make_attention_run(tmp_path, blocks=blocks)
    assert attention.draw(cut) is None
    assert "forward 113%, backward 113%" in result_table(cut)
