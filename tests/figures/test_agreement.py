"""The figure and the table of a run that compared greedy output and timed nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from figures import agreement
from figures.make_figures import drawn_files, main
from figures.make_tables import result_table
from figures.style import house_style
from harness.store import Run
from harness.verify import verify
from tests.figures.made_run import cell, checked, make_run
from tests.figures.test_make_figures import texts

POSITIONS = {3: (0, 0.02), 7: (31, 0.0), 9: (4, 0.3)}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    rows = [checked(number, *POSITIONS.get(number, ())) for number in range(10)]
    return make_run(tmp_path_factory.mktemp("results"), "checked", [], rows)


def test_a_run_without_cells_is_whole_and_has_this_figure_alone(run: Run, tmp_path: Path) -> None:
    assert verify(run.path) == []
    assert run.serving.empty
    assert set(drawn_files(run)) == {"agreement.svg", "agreement.png"}
    options = ["--results", str(run.path.parent), "--out", str(tmp_path)]
    assert main(options) == 0
    assert main([*options, "--check"]) == 0


def test_it_says_what_is_compared(run: Run) -> None:
    with house_style():
        shown = "\n".join(texts(agreement.draw(run)))
    assert "7 of 10 prompts identical, teacher-forced 99.06% (317 of 320 tokens)" in shown
    assert "n = 3" in shown
    assert "smollm2-135m, real weights, bfloat16" in shown
    assert "Systems in bfloat16; reference: greedy transformers 5.1 in float32" in shown
    assert "reference's top-2 logit gap there (logits)" in shown


def test_prompts_are_lost_at_the_token_that_differs(run: Run) -> None:
    share = agreement.survival(run.correctness, 32)
    assert share.size == 33
    assert np.allclose(share[[0, 1, 4, 5, 31, 32]], [1, 0.9, 0.9, 0.8, 0.8, 0.7])


def test_without_a_divergence_it_says_so(tmp_path: Path) -> None:
    run = make_run(tmp_path, cells=[], correctness=[checked(0), checked(1)])
    with house_style():
        shown = texts(agreement.draw(run))
    assert "no prompt diverges" in shown and "n = 0" in shown


def test_prompts_without_an_answer_are_counted_and_not_drawn(tmp_path: Path) -> None:
    failed = checked(1, identical=False, error="timed out", forced_tokens=None, forced_agree=None)
    run = make_run(tmp_path, cells=[], correctness=[checked(0), failed])
    with house_style():
        shown = texts(agreement.draw(run))
    assert "not drawn: prompts without an answer: 1, see correctness.csv" in shown


def test_a_check_without_teacher_forcing_has_no_figure(tmp_path: Path) -> None:
    rows = [checked(0, forced_tokens=None, forced_agree=None)]
    run = make_run(tmp_path, cells=[cell(0, "engine", "closed")], correctness=rows)
    assert agreement.draw(run) is None
    assert agreement.draw(make_run(tmp_path, "unchecked", [cell(0, "engine", "closed")])) is None


def test_sums_of_the_manifest_that_the_rows_do_not_give_are_named(tmp_path: Path) -> None:
    run = make_run(tmp_path, cells=[], correctness=[checked(0), checked(1)])
    manifest = run.path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"forced_agreement": 1.0', '"forced_agreement": 0.5'))
    assert verify(run.path) == [
        "manifest.json: reference_check.forced_agreement is 0.5, correctness.csv gives 1.0"
    ]


def test_its_result_table_has_a_line_a_system(run: Run) -> None:
    lines = result_table(run).splitlines()
    assert lines[2] == (
        "| system | prompts | identical | teacher-forced | smallest gap at a first divergence | largest |"
    )
    assert lines[4] == "| engine | 10 | 7 | 99.06% | 0.00 | 0.300 |"
