"""Result tables of README.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from figures.make_tables import README, RESULTS, with_tables
from harness.store import StoreError
from tests.figures.made_run import cell, make_run


def block(run: str, content: str = "") -> str:
    return f"before\n<!-- results:begin {run} -->\n{content}<!-- results:end -->\nafter\n"


def test_a_table_is_written_between_its_markers_and_again_the_same(tmp_path: Path) -> None:
    make_run(
        tmp_path,
        cells=[
            cell(0, "engine", "closed"),
            cell(1, "vllm", "closed", config="eager"),
            cell(2, "sglang", "poisson", failure="a | b"),
        ],
    )
    made = with_tables(block("r1", "old\n"), tmp_path)
    lines = made.splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    assert "old" not in lines
    assert lines[2].startswith("smollm2-135m, real weights, bfloat16; NVIDIA H200")
    assert lines[4] == "| system | load | requests | tokens/s | TTFT p50 (ms) | TPOT p50 (ms) | verdict |"
    assert lines[6].startswith("| engine | closed loop, 4 in flight | 250 | 6")
    assert lines[6].endswith("| VALID |")
    assert lines[7].startswith("| vLLM 1.0, eager | closed loop")
    assert lines[8] == (
        "| SGLang 1.0 | Poisson arrivals, 10 requests/s | – | – | – | – | INVALID: not_measured: a / b |"
    )
    assert with_tables(made, tmp_path) == made


def test_a_run_that_is_not_complete_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no run at"):
        with_tables(block("none"), tmp_path)


def test_tables_of_the_readme_are_what_the_committed_runs_give() -> None:
    text = README.read_text()
    assert with_tables(text, RESULTS) == text
