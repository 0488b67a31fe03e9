"""Runs of several systems and repetitions: alternation, resuming after a kill, budgets, merging, searches."""

import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.client.null_process import Pace
from harness.client.null_server import NullServer
from harness.schema import KneeRow
from harness.store import load_run
from harness.verify import verify
from tests.harness.systems.test_process import wait_until
from tests.harness.test_gpu import FakeNvml
from tests.harness.test_run import ROOT, command, in_process, stage_file

PAIR = '["null", "null:again"]'
RESIDENT = "repetitions = 2\nresidents = { null = 0.1 }"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("long")
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    return folder


def pair(place: Path, name: str, **changes) -> Path:
    return stage_file(place, name, window_s=0.6, systems=PAIR, **({"more": RESIDENT} | changes))


def run(place: Path, stage: Path, name: str, *arguments: object) -> int:
    return in_process(place, "run", stage, "--device", "cpu", "--run", name, *arguments)


def result(place: Path, name: str):
    found = load_run(place / "results" / name)
    assert verify(found.path) == []
    return found


def order(found) -> list[str]:
    return [f"{row.config}/{row.load_name}{row.repetition}" for row in found.serving.itertuples()]


FULL = [
    "default/closed0", "again/closed0", "again/closed1", "default/closed1",
    "again/open0", "default/open0", "default/open1", "again/open1",
]  # fmt: skip


@pytest.fixture(scope="module")
def abba(place):
    assert run(place, pair(place, "abba"), "abba") == 0
    return result(place, "abba")


def test_residents_alternate_and_play_equal_schedules(abba):
    found = abba
    assert order(found) == FULL
    assert set(found.serving["residents"]) == {"null null:again"}
    assert set(found.serving["memory_share"]) == {0.1}
    by_block = found.serving.groupby(["load_name", "repetition"])["schedule_sha256"].nunique()
    assert (by_block == 1).all(), "a block of systems played different schedules"
    assert found.serving["schedule_sha256"].nunique() == 4
    assert len(found.manifest.servers) == 2
    argv = [server.argv for server in found.manifest.servers]
    assert [arguments[-4:] for arguments in argv] == [["--ttft-ms", "20", "--tpot-ms", "5"]] * 2


@pytest.mark.slow
@pytest.mark.parametrize("finished", [0, 1, 3, 6])
def test_a_run_killed_at_any_point_goes_on_under_its_name(place, finished):
    name = f"resumed-{finished}"
    stage = pair(place, name)
    arguments = ("run", stage, "--device", "cpu", "--run", name)
    process = subprocess.Popen(
        command(place, *arguments), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    partial = place / "results" / f".{name}.partial"
    wait_until(lambda: len(list(partial.glob("cells/*/cell.json"))) >= finished, "no cell was finished")
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = {path.parent.name: path.read_bytes() for path in partial.glob("cells/*/cell.json")}
    assert in_process(place, *arguments) == 0
    found = result(place, name)
    assert order(found) == FULL
    for cell in found.manifest.cells:
        if cell.cell in before:
            assert cell.model_dump_json(indent=1).encode() == before[cell.cell], "a finished cell was lost"
    expected = [0] * len(before) + [1] * (8 - len(before)) if (partial_sessions := len(before)) else None
    sessions = found.serving["session"].tolist()
    assert sessions == (expected if partial_sessions else [len(found.manifest.later_sessions)] * 8)


def test_a_run_may_not_go_on_with_another_stage_or_model(place, capsys):
    partial = place / "results" / ".other.partial"
    stage = pair(place, "other", more=RESIDENT + "\n# then")
    process = subprocess.Popen(
        command(place, "run", stage, "--device", "cpu", "--run", "other"),
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_until(lambda: (partial / "started.json").exists(), "the run did not begin")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert run(place, stage, "other", "--system", "null") == 2
    assert "run other was begun with another set of systems" in capsys.readouterr().err
    assert run(place, pair(place, "other"), "other") == 2
    assert "run other was begun with another stage file: choose another name" in capsys.readouterr().err
    stage = pair(place, "other", more=RESIDENT + "\n# then")
    (place / "elsewhere").mkdir()
    (place / "elsewhere" / "config.json").write_text('{"hidden_size": 1}')
    assert run(place, stage, "other", "--model", place / "elsewhere") == 2
    assert "run other was begun with another model" in capsys.readouterr().err


def test_a_run_that_is_being_written_is_left_alone(place, capsys):
    stage = stage_file(place, "busy", window_s=60)
    process = subprocess.Popen(
        command(place, "run", stage, "--device", "cpu", "--run", "busy"),
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        started = place / "results" / ".busy.partial" / "started.json"
        wait_until(started.exists, "the run did not begin")
        assert run(place, stage, "busy") == 2
        assert "is being written by another process" in capsys.readouterr().err
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def test_a_budget_cuts_where_all_systems_are_alike_and_the_rest_is_added_later(place, abba, capsys):
    stage = pair(place, "cut", more=RESIDENT + "\n# not that of abba")
    assert run(place, stage, "cut-a", "--budget-s", "0.1") == 0
    assert result(place, "cut-a").serving.empty
    assert "time is over: 8 cells of the plan are not measured" in capsys.readouterr().err

    assert run(place, stage, "whole") == 0
    halves = result(place, "whole").manifest
    assert halves.planned_cells == 8

    assert run(place, stage, "nothing-left", "--after", "whole") == 0
    assert result(place, "nothing-left").serving.empty
    assert in_process(place, "merge", "merged", "whole", "cut-a", "nothing-left") == 0
    merged = result(place, "merged")
    assert order(merged) == FULL
    assert merged.serving["run"].unique().tolist() == ["merged"]
    assert len(merged.manifest.later_sessions) == 2
    capsys.readouterr()
    assert in_process(place, "merge", "merged", "whole", "cut-a") == 2
    assert "exists already" in capsys.readouterr().err
    assert in_process(place, "merge", "one", "whole") == 2
    assert "1 run given to merge; at least 2 are needed" in capsys.readouterr().err
    assert in_process(place, "merge", "mixed", "whole", "abba") == 2
    assert "have another stage file: they cannot be merged" in capsys.readouterr().err


class SharedGpu(FakeNvml):
    """One GPU; process 666 comes when the first cell has been played, and stays."""

    def nvmlDeviceGetCount(self):
        return 1

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(total=2**34, free=2**34, used=0)

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        finished = list(self.results.glob(".*.partial/cells/*/cell.json"))
        return [SimpleNamespace(pid=666)] if finished else []


@pytest.fixture
def gpu(place, monkeypatch):
    nvml = SharedGpu()
    nvml.results = place / "results"
    monkeypatch.setattr("harness.survey.open_nvml", lambda: nvml)
    monkeypatch.setattr("harness.gpu.RELEASE_LIMIT_S", 0.0)
    return nvml


def on_gpu(stage: Path) -> Path:
    stage.write_text(stage.read_text().replace("[cpu]", "[cuda]").replace("cpu.cells", "cuda.cells"))
    return stage


def test_a_stranger_on_the_gpu_makes_every_cell_invalid_that_it_is_there_in(place, gpu, monkeypatch):
    assert in_process(place, "run", on_gpu(pair(place, "shared")), "--device", "cuda", "--run", "shared") == 1
    verdicts = result(place, "shared").serving
    assert verdicts["verdict"].tolist() == ["VALID"] + ["INVALID"] * 7
    assert set(verdicts["reasons"][1:]) == {"gpu_shared: pid 666 on GPU 0"}
    assert set(verdicts["num_gpus"]) == {1} and verdicts["joules_per_token"].notna().all()


def test_of_a_server_that_somebody_else_started_no_gpu_is_known(place, gpu):
    stage = on_gpu(stage_file(place, "elsewhere"))
    with NullServer(processes=1, pace=Pace.from_ms(10, 2)) as server:
        arguments = ("--device", "cuda", "--run", "elsewhere", "--system", server.url)
        assert in_process(place, "run", stage, *arguments) == 0
    rows = result(place, "elsewhere").serving
    assert rows["verdict"].tolist() == ["VALID", "VALID"]
    assert rows["gpu"].isna().all() and set(rows["num_gpus"]) == {0}
    assert rows["joules_per_token"].isna().all()


SEARCH = """
[[cpu.searches]]
name = "knee"
low_rps = 5
high_rps = 40
ratio = 2
repetitions = 1
target_attainment = 0.9
output = [4, 4]
ramp_s = 0.2
window_s = 0.6
"""


def test_a_search_ends_in_an_interval(place):
    """The null server's 20 ms and 5 ms keep any limit that is above them, at any rate: no rate fails."""
    stage = stage_file(place, "search", window_s=0.6, after=SEARCH)
    assert run(place, stage, "search") == 0
    found = result(place, "search")
    (knee,) = found.records(KneeRow)
    assert (knee.system, knee.low_rps, knee.high_rps) == ("null", 40, None)
    tried = found.serving[found.serving["load_name"].str.startswith("knee-")]
    assert tried["load_name"].tolist() == ["knee-10rps", "knee-20rps", "knee-40rps"]
    assert found.manifest.planned_cells == 5


def test_a_search_of_a_server_that_is_too_slow_says_so(place):
    stage = stage_file(place, "slow", window_s=0.6, after=SEARCH)
    stage.write_text(stage.read_text().replace("tpot_ms = 5000", "tpot_ms = 0.1"))
    assert run(place, stage, "slow") == 0
    (knee,) = result(place, "slow").records(KneeRow)
    assert (knee.low_rps, knee.high_rps, knee.cells) == (None, 5, 2)


def test_a_server_that_runs_already_is_measured_by_its_url(place):
    stage = stage_file(place, "url")
    with NullServer(processes=1, pace=Pace.from_ms(10, 2)) as server:
        assert run(place, stage, "url", "--system", server.url) == 0
    found = result(place, "url")
    assert set(found.serving["system"]) == {"openai"}
    assert found.serving["weights"].unique().tolist() == ["unknown"]
    assert (found.serving["verdict"] == "VALID").all()
