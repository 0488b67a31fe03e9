"""The stage end to end on a CPU, by its commands; and what `verify` finds in a run that was changed."""

import gzip
import json
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.attention import run as attention_run
from harness.schema import AttentionRow, Manifest
from harness.store import Run, list_runs, load_run, read_manifest
from harness.verify import verify
from tests.harness.attention.made import make_attention_run


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    assert main(["run", "attention", "--device", "cpu", "--results", str(folder), "--run", "cpu"]) == 0
    return folder


def test_the_cpu_part_is_measured_stored_and_verified(results: Path):
    run = load_run(results / "cpu")
    rows = run.records(AttentionRow)
    assert verify(run.path) == []
    assert {row.impl for row in rows} == {"reference", "naive"}
    assert {row.direction for row in rows} == {"forward", "backward", "decode"}
    assert all(row.ms > 0 and row.roofline_share > 0 and row.error < 1e-5 for row in rows)
    assert (run.manifest.stage, run.manifest.planned_cells) == ("attention", len(rows))
    assert run.manifest.environments["project"].packages["torch"]


def test_report_shows_the_run_and_gives_it_to_programs(results: Path, capsys):
    assert main(["report", "cpu", "--results", str(results)]) == 0
    assert "causal, forward, D 64: TFLOP/s at batch x sequence" in capsys.readouterr().out
    assert main(["report", "cpu", "--results", str(results), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["attention"]) == 26


def test_the_plan_names_every_cell(capsys):
    assert main(["plan", "attention", "--device", "cuda", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["cells"]) == 304


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--device", "cpu", "--model", "x"], "takes no --model"),
        (["--device", "cpu", "--run", "cpu"], "exists already"),
        (["--device", "cpu", "--run", "../x"], "run name '../x'"),
    ],
)
def test_what_cannot_be_done_is_said(results: Path, capsys, more, said):
    assert main(["run", "attention", "--results", str(results), *more]) == 2
    assert said in capsys.readouterr().err


def test_without_a_gpu_the_gpu_part_is_refused(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setattr(attention_run, "open_nvml", lambda: None)
    assert main(["run", "attention", "--device", "cuda", "--results", str(tmp_path)]) == 2
    assert "no NVIDIA GPU is visible here" in capsys.readouterr().err


def test_a_run_that_was_killed_does_not_go_on(tmp_path: Path, capsys, monkeypatch):
    arguments = ["run", "attention", "--device", "cpu", "--results", str(tmp_path), "--run", "half"]

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(attention_run, "_measure", killed)
        assert main(arguments) == 130
    assert [(run.stage, run.state) for run in list_runs(tmp_path)] == [("attention", "incomplete")]
    assert main(arguments) == 2
    assert "was left by a run that was killed" in capsys.readouterr().err


def test_a_budget_cuts_between_blocks_and_the_run_says_so(tmp_path: Path):
    arguments = ["run", "attention", "--device", "cpu", "--results", str(tmp_path), "--run", "cut"]
    assert main([*arguments, "--budget-s", "0"]) == 0
    run = load_run(tmp_path / "cut")
    assert run.records(AttentionRow) == []
    assert run.manifest.planned_cells == 26
    assert verify(run.path) == []


def changed(path: Path, name: str, old: bytes, new: bytes) -> list[str]:
    """What verify says of the values when a file is changed once and its checksum made to fit."""
    file = path / name
    text = gzip.decompress(file.read_bytes()) if name.endswith(".gz") else file.read_bytes()
    assert old in text
    text = text.replace(old, new, 1)
    file.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return [line for line in verify(path) if "SHA-256" not in line]


def test_verify_finds_a_changed_time_and_a_changed_sample(tmp_path: Path):
    whole = make_attention_run(tmp_path, "whole")
    assert verify(whole.path) == []
    first = whole.records(AttentionRow)[0]
    (line,) = changed(whole.path, "attention.csv", f",{first.tflops:.6g},".encode(), b",999,")
    named = "attention.csv, causal-d128-s16384, triton forward, repetition 0"
    assert line.startswith(f"{named}: tflops is '999', samples give ")
    other = make_attention_run(tmp_path, "other")
    found = changed(
        other.path,
        "attention_samples.csv.gz",
        b"packed,varlen,backward,1,4,0,",
        b"packed,varlen,backward,1,4,0,9",
    )
    assert {line.split(": ")[1].split()[0] for line in found} == {"ms", "tflops", "roofline_share"}


def test_verify_finds_a_row_that_is_gone_and_a_verdict_that_was_turned(tmp_path: Path):
    run = make_attention_run(tmp_path, "turned")
    content = (run.path / "attention.csv").read_bytes()
    lines = content.splitlines(keepends=True)
    (run.path / "attention.csv").write_bytes(b"".join([lines[0], *lines[2:]]))
    assert any("triton forward 0 has no row".replace(" ", ", ", 2) in line for line in verify(run.path))
    (run.path / "attention.csv").write_bytes(content.replace(b"INVALID,out of memory", b"VALID,", 1))
    assert {line.split(": ")[1].split()[0] for line in verify(run.path) if "naive" in line} == {
        "verdict", "reasons",
    }  # fmt: skip


def test_a_run_of_the_stage_is_read_as_any_other(tmp_path: Path):
    run = make_attention_run(tmp_path)
    assert isinstance(run, Run) and isinstance(read_manifest(run.path), Manifest)
    assert {stored.path for stored in run.manifest.files} >= {"attention.csv", "attention_samples.csv.gz"}
