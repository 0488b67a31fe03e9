"""The table of a run that compares systems at several concurrencies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from figures.compare_table import compares
from figures.make_tables import result_table, with_tables
from figures.spread import described, described_in_table, of_ratios, of_values
from tests.figures.made_ladder import Ladder, make_ladder

LADDER = Ladder(
    lines=(("engine", "default"), ("vllm", "default"), ("sglang", "default")),
    concurrencies=(1, 4, 16),
    rates=(5.0,),
    requests=2,
)


def fixed(values: dict[tuple[str, int | None], float], **more: dict) -> dict:
    """Throughputs at four in flight by system and repetition."""
    return {
        (system, "default", "closed-4", number): {"output_tokens_per_s": value}
        for (system, number), value in values.items()
    } | more


def test_rows_are_systems_columns_concurrencies_and_ratios_stand_below(tmp_path: Path) -> None:
    ours = {("engine", number): value for number, value in enumerate((90.0, 99.0, 108.9))}
    peers = {("vllm", number): value for number, value in enumerate((100.0, 110.0, 121.0))}
    changes = fixed(ours | peers | {("sglang", None): 50.0})
    made = make_ladder(tmp_path, "r1", replace(LADDER, changes=changes))
    assert compares(made)
    text = with_tables("<!-- results:begin r1 -->\n<!-- results:end -->\n", tmp_path)
    lines = text.splitlines()
    assert lines[1].startswith("llama-3.2-1b, random weights, bfloat16; NVIDIA H200, driver 580.159.04")
    assert lines[3] == (
        "Closed loops, token_ids 128 to 32: output tokens/s, geometric mean of 3 repetitions; in each "
        "repetition all systems played the same schedule. Ratio: engine / the peer of the highest mean, "
        "3 pairs, [95 % t-interval on logarithms]; an interval of fewer than 6 pairs leans on log-normal "
        "noise."
    )
    assert lines[5] == "| tokens/s at this many in flight | 1 | 4 | 16 |"
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[7:11]]
    assert [row[0] for row in cells] == ["engine", "vLLM 1.0", "SGLang 1.0", "**engine / better peer**"]
    assert [row[2] for row in cells] == ["99.0", "110", "50.0", "0.900 [0.900, 0.900] vLLM"]
    assert cells[3][1].endswith("SGLang")
    assert with_tables(text, tmp_path) == text


def test_missing_repetitions_and_points_are_said(tmp_path: Path) -> None:
    invalid = {"verdict": "INVALID", "reasons": "x"}
    changes = {
        ("engine", "default", "closed-4", 1): invalid,
        ("sglang", "default", "closed-16", None): invalid,
    }
    shown = result_table(make_ladder(tmp_path, "r1", replace(LADDER, changes=changes)))
    assert "INVALID and not in the means: 4 of 27 cells." in shown
    engine, _, sglang = shown.splitlines()[6:9]
    assert "(2 rep.)" in engine.split("|")[3]
    assert sglang.split("|")[4].strip() == "–"
    assert "2 to 3 pairs" in shown


def test_peers_of_several_configurations_are_compared_one_by_one(tmp_path: Path) -> None:
    lines = (("engine", "default"), ("vllm", "default"), ("vllm", "tuned"), ("sglang", "default"))
    shown = result_table(make_ladder(tmp_path, "r1", replace(LADDER, lines=lines)))
    assert "**engine / better peer · default**" in shown
    (tuned,) = [line for line in shown.splitlines() if "better peer · tuned" in line]
    assert tuned.count("vLLM") == 3


def test_configurations_of_one_system_are_compared_with_its_default(tmp_path: Path) -> None:
    changes = {
        ("vllm", "default", "closed-4", None): {"output_tokens_per_s": 100.0},
        ("vllm", "again", "closed-4", None): {"output_tokens_per_s": 105.0},
    }
    lines = (("vllm", "default"), ("vllm", "again"))
    made = make_ladder(tmp_path, "r1", replace(LADDER, lines=lines, repetitions=6, changes=changes))
    shown = result_table(made)
    assert "Ratio: a configuration / vLLM, 6 pairs, [95 % t-interval on logarithms]." in shown
    (row,) = [line for line in shown.splitlines() if line.startswith("| **vLLM · again / vLLM** |")]
    assert row.split("|")[3].strip() == "1.050 [1.050, 1.050]"


@pytest.mark.parametrize("changes", [{"repetitions": 1}, {"concurrencies": (1, 4)}])
def test_without_repetitions_or_many_loads_it_is_a_line_a_cell(tmp_path: Path, changes: dict) -> None:
    made = make_ladder(tmp_path, "r1", replace(LADDER, **changes))
    assert not compares(made)
    assert "| system | load | requests |" in result_table(made)


def test_spreads_of_few_values_have_their_ends() -> None:
    two = of_ratios([(2.0, 1.0), (1.0, 2.0)])
    assert (two.mean, two.low, two.high, two.number) == (pytest.approx(1), 0.5, 2, 2)
    one = of_values([7.0])
    assert (one.mean, one.low, one.high) == (pytest.approx(7), 7, 7)
    with pytest.raises(ValueError, match="needs a value"):
        of_values([])


def test_words_for_intervals_follow_the_numbers() -> None:
    assert described([1, 1]) == "one repetition each, so no interval"
    assert "smallest to largest below 3 repetitions" in described([2, 6])
    assert "smallest" not in described([3, 6])
    six = of_ratios([(1.0, 1.0)] * 6)
    assert described_in_table([six]) == "6 pairs, [95 % t-interval on logarithms]"
    assert described_in_table([of_values([1.0])]) == "1 pair, so no interval"
