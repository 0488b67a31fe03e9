"""Figures from complete runs: the same bytes each time, only VALID rows, compared only at equal schedules."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from figures import latency, throughput
from figures.make_figures import DRAWN, differences, drawn_files, drawn_folders, main
from figures.runs import RESULTS, ROOT, complete_runs, describe_origin, latencies, panels, valid_rows
from figures.style import house_style
from harness.schema import Session
from harness.store import Run
from tests.figures.made_ladder import Ladder, make_ladder
from tests.figures.made_run import cell, make_run

LADDER = Ladder(
    lines=(("engine", "default"), ("vllm", "tuned")),
    concurrencies=(1, 4, 16),
    rates=(5.0, 20.0),
    repetitions=2,
    requests=6,
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    make_run(folder)
    return folder


@pytest.fixture(scope="module")
def run(results: Path) -> Run:
    return complete_runs(results)[0][0]


def texts(figure: Figure | None) -> list[str]:
    """Every text of a figure."""
    assert figure is not None
    found = [text.get_text() for text in figure.texts]
    for axes in figure.axes:
        found += [text.get_text() for text in axes.texts]
        found += [axes.get_title("left"), axes.get_title("right"), axes.get_xlabel(), axes.get_ylabel()]
        found += [label.get_text() for label in axes.get_yticklabels()]
    return found


def drawn_with_other_settings(results: Path, drawn: Path, settings: Path) -> None:
    """Draws in another process, whose user has changed what matplotlib and the machine let a user change."""
    settings.write_text("font.family: serif\nsvg.fonttype: none\nsavefig.dpi: 40\nlines.linewidth: 9\n")
    changed = {"MATPLOTLIBRC": str(settings), "TZ": "Asia/Tokyo", "LC_ALL": "C", "SOURCE_DATE_EPOCH": "5"}
    command = [sys.executable, "-m", "figures.make_figures", "--results", results, "--out", drawn]
    subprocess.run(command, cwd=ROOT, env=os.environ | changed, check=True)


def test_the_same_data_gives_the_same_bytes_whatever_the_user_has_set(results: Path, tmp_path: Path) -> None:
    drawn_with_other_settings(results, tmp_path / "drawn", tmp_path / "matplotlibrc")
    assert main(["--results", str(results), "--out", str(tmp_path / "drawn"), "--check"]) == 0


@pytest.mark.slow
def test_figures_over_load_are_the_same_bytes_too(tmp_path: Path) -> None:
    make_ladder(tmp_path / "results", "ladder", LADDER)
    drawn_with_other_settings(tmp_path / "results", tmp_path / "drawn", tmp_path / "matplotlibrc")
    assert len(list((tmp_path / "drawn/ladder").iterdir())) == 12
    assert main(["--results", str(tmp_path / "results"), "--out", str(tmp_path / "drawn"), "--check"]) == 0


def test_many_configurations_have_bars_alone_in_the_order_of_the_run(tmp_path: Path) -> None:
    lines = tuple(("vllm", config) for config in ("default", *(f"tune-{number}" for number in range(8))))
    ladder = Ladder(lines=lines, concurrencies=(64, 256), rates=(), repetitions=2, requests=1)
    made = make_ladder(tmp_path, "tuning", ladder)
    assert latency.draw(made) is None
    figure = throughput.draw(made)
    assert figure is not None
    for axes in figure.axes:
        labels = [label.get_text() for label in axes.get_yticklabels()]
        assert labels == ["vLLM", *(f"vLLM · tune-{number}" for number in range(8))]


def test_sessions_and_what_was_cut_are_said(run: Run) -> None:
    first = run.manifest
    later = Session(
        created_at="2026-01-02T00:00:00Z", command=[], source=first.source, box="another", environments={},
        hardware=first.hardware, client_ceiling=None,
    )  # fmt: skip
    manifest = first.model_copy(update={"later_sessions": [later], "planned_cells": 9})
    assert describe_origin(replace(run, manifest=manifest)) == (
        "run r1 · commit ffffffffff · 2 sessions on nvidia-h200-16c and another, see manifest.json · "
        "cut after 6 of 9 cells"
    )


def test_check_names_what_is_different(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "results", cells=[cell(0, "engine", "closed")])
    drawn = tmp_path / "drawn"
    arguments = ["--results", str(tmp_path / "results"), "--out", str(drawn)]
    assert main(arguments) == 0
    svg, png = drawn / "r1/latency.svg", drawn / "r1/throughput.png"
    svg.write_bytes(svg.read_bytes().replace(b"#0072b2", b"#0072b3"))
    png.unlink()
    (drawn / "r1/old.svg").touch()
    (drawn / "gone").mkdir()
    capsys.readouterr()
    assert main([*arguments, "--check"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"{svg}: differs from its redrawing",
        f"{drawn / 'r1/old.svg'}: nothing draws it",
        f"{png}: missing",
        f"{drawn / 'gone'}: there is no complete run of this name",
    ]
    assert main(arguments) == 0
    assert sorted(path.name for path in (drawn / "r1").iterdir()) == [
        "latency.png", "latency.svg", "throughput.png", "throughput.svg",
    ]  # fmt: skip


def test_figures_carry_units_numbers_and_machine(run: Run) -> None:
    for draw in (throughput.draw, latency.draw):
        with house_style():
            shown = "\n".join(texts(draw(run)))
        assert "NVIDIA H200, driver 580.159.04, 16 CPU cores" in shown
        assert "smollm2-135m, real weights, bfloat16" in shown
        assert "n = 250" in shown
        assert "schedule a1b2a1b2a1b2" in shown
        assert "run r1 · commit ffffffffff" in shown
    assert "output tokens per second (tokens/s)" in texts(throughput.draw(run))
    assert {
        "time to first token, TTFT (ms)",
        "time per output token, TPOT (ms)",
        "share of requests (%)",
    } <= set(texts(latency.draw(run)))


def test_only_valid_rows_are_drawn(tmp_path: Path) -> None:
    mixed = make_run(
        tmp_path, cells=[cell(0, "engine", "closed"), cell(1, "vllm", "closed", failure="did not start")]
    )
    for draw in (throughput.draw, latency.draw):
        shown = texts(draw(mixed))
        assert "engine" in shown
        assert "vLLM" not in shown
        assert "not drawn: 1 INVALID cell (vLLM), see serving.csv" in shown


def test_without_a_valid_row_nothing_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "results", cells=[cell(0, "engine", "closed", failure="did not start")])
    assert main(["--results", str(tmp_path / "results"), "--out", str(tmp_path / "drawn")]) == 0
    assert "nothing is VALID, nothing drawn" in capsys.readouterr().out
    assert list((tmp_path / "drawn/r1").iterdir()) == []


def test_only_equal_schedules_share_a_panel(tmp_path: Path) -> None:
    run = make_run(
        tmp_path, cells=[cell(0, "engine", "closed"), cell(1, "vllm", "closed", schedule_sha256="9" * 64)]
    )
    assert [[series.system for series in panel.series] for panel in panels(run, valid_rows(run))] == [
        ["vllm"],
        ["engine"],
    ]


def test_repetitions_are_joined_and_said(tmp_path: Path) -> None:
    run = make_run(tmp_path, cells=[cell(0, "engine", "closed"), cell(1, "engine", "closed", repetition=1)])
    assert "n = 500 requests, 20 s, 2 runs" in texts(throughput.draw(run))
    (series,) = panels(run, valid_rows(run))[0].series
    assert latencies(run, series).ttft_ms.size == 500


def test_medians_of_the_curves_are_those_of_serving_csv(run: Run) -> None:
    for panel in panels(run, valid_rows(run)):
        for series in panel.series:
            found = latencies(run, series)
            row = series.rows.iloc[0]
            assert f"{found.ttft_ms[(found.ttft_ms.size - 1) // 2]:.6g}" == f"{row['ttft_ms_p50']:.6g}"
            assert f"{found.tpot_ms[(found.tpot_ms.size - 1) // 2]:.6g}" == f"{row['tpot_ms_p50']:.6g}"


def test_incomplete_and_damaged_runs_are_named_and_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "results", "good", cells=[cell(0, "engine", "poisson")])
    make_run(tmp_path / "results", "bad", cells=[cell(0, "engine", "poisson")])
    serving = tmp_path / "results/bad/serving.csv"
    serving.write_bytes(serving.read_bytes().replace(b"INVALID", b"VALID") + b"\n")
    (tmp_path / "results/.half.partial").mkdir()
    assert main(["--results", str(tmp_path / "results"), "--out", str(tmp_path / "drawn")]) == 1
    said = capsys.readouterr().out
    assert "skipped .half.partial: " in said
    assert "skipped bad: damaged: serving.csv: SHA-256 is not the one in manifest.json" in said
    assert [path.name for path in (tmp_path / "drawn").iterdir()] == ["good"]


def test_no_results_is_said_and_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--check"]):
        assert main(["--results", str(tmp_path / "none"), "--out", str(tmp_path / "drawn"), *arguments]) == 0
    assert "no complete run" in capsys.readouterr().out
    assert main(["--results", str(tmp_path / "none"), "--run", "x"]) == 2


def test_committed_figures_are_what_their_data_draws() -> None:
    runs = {run.path.name: run for run in complete_runs(RESULTS)[0]}
    drawn = drawn_folders(DRAWN)
    assert [folder.name for folder in drawn if folder.name not in runs] == []
    assert [line for folder in drawn for line in differences(folder, drawn_files(runs[folder.name]))] == []
