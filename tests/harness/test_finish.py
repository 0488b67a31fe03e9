"""A run that cannot go on is closed with the cells it has."""

from pathlib import Path

import pytest

from harness import run as running
from harness.schema import KneeRow
from harness.store import load_run, partial_path
from harness.verify import verify
from tests.harness.made import started
from tests.harness.test_long_runs import SEARCH
from tests.harness.test_run import NO_CELLS, in_process, stage_file


class PowerCut(Exception):
    pass


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finish")
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    return folder


def cut_after(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run dies when it wants to measure the next cell after so many."""
    measure, measured = running._StageRun._measure_cell, []

    def until_the_cut(self: object, *arguments: object) -> object:
        if len(measured) == cells:
            raise PowerCut
        measured.append(1)
        return measure(self, *arguments)

    monkeypatch.setattr(running._StageRun, "_measure_cell", until_the_cut)


def test_finished_cells_of_a_cut_run_become_a_run(place, monkeypatch, capsys):
    stage = stage_file(place, "cut", window_s=0.6, after=SEARCH)
    with monkeypatch.context() as patch, pytest.raises(PowerCut):
        cut_after(1, patch)
        in_process(place, "run", stage, "--device", "cpu", "--run", "cut")
    assert in_process(place, "finish", "cut") == 0
    assert "cut: 1 of 2 cells" in capsys.readouterr().out
    run = load_run(place / "results" / "cut")
    assert run.serving["verdict"].tolist() == ["VALID"]
    assert len(run.requests) > 0
    assert run.manifest.planned_cells == 2
    assert len(run.manifest.searches) == 1 and run.records(KneeRow) == []
    assert len(run.manifest.schedules) == 3  # two loads and the warm-up
    assert not partial_path(place / "results", "cut").exists()
    assert verify(run.path) == []
    assert in_process(place, "finish", "cut") == 2
    assert "there is no incomplete run cut" in capsys.readouterr().err


def test_answers_that_were_compared_stay(place, monkeypatch):
    answer = dict(prompt_ids=[1], prompt_tokens=1, ids=[5, 6], text="x", finish="length", gaps=[1.0, 2.0])
    reference = dict(device="cpu", dtype="float32", attention="sdpa", packages={}, wall_s=1.0)
    monkeypatch.setattr("harness.check.run_reference", lambda *_: reference | {"answers": [answer] * 2})
    stage = place / "alone.toml"
    stage.write_text(NO_CELLS.format(model=place / "model"))

    def cut(*_: object) -> None:
        raise PowerCut

    with monkeypatch.context() as patch, pytest.raises(PowerCut):
        patch.setattr(running, "write_run", cut)
        in_process(place, "run", stage, "--device", "cpu", "--run", "answers")
    assert in_process(place, "finish", "answers") == 0
    run = load_run(place / "results" / "answers")
    assert len(run.correctness) == 2
    assert run.manifest.reference_check.identical_share == 0
    assert verify(run.path) == []


def test_a_run_without_a_finished_cell_is_none(place, capsys):
    partial = partial_path(place / "results", "empty")
    partial.mkdir(parents=True)
    (partial / "started.json").write_text(started().model_copy(update={"run": "empty"}).model_dump_json())
    assert in_process(place, "finish", "empty") == 2
    assert (
        "run empty has no finished cell and no compared answer: nothing to finish" in capsys.readouterr().err
    )
    assert partial.is_dir()
