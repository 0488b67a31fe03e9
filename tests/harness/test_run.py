"""The whole of `python -m harness run`, against the null server, whose times are known."""

import dataclasses
import gzip
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.store import IncompleteRun, list_runs, load_run, sha256_of
from harness.systems import SYSTEMS
from harness.systems.null import NULL
from harness.verify import verify
from tests.harness.made import started
from tests.harness.systems.test_process import wait_until

ROOT = Path(__file__).parents[2]

STAGE = """
description = "the harness against a server of known times"
model = "{model}"
max_model_len = 128
seed = 1
[cpu]
systems = {systems}
dtype = "float32"
client_workers = 1
limits = {{ lag_p99_ms = 5000, min_window_s = 0.5 }}
slo = {{ ttft_ms = 5000, tpot_ms = 5000 }}
warmup = {{ requests = 4, concurrency = 2, output = [4, 4], max_rounds = 1 }}
{more}
ceiling = {{ concurrency = 8, seconds = 0.3 }}
[[cpu.cells]]
name = "closed"
load = {{ shape = "closed", concurrency = 2, requests = {requests} }}
output = [8, 8]
ramp_s = 0.2
window_s = {window_s}
[[cpu.cells]]
name = "open"
load = {{ shape = "poisson", rate_rps = 20 }}
output = [4, 8]
ramp_s = 0.2
window_s = 1.0
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a model folder that only the null server would serve."""
    folder = tmp_path_factory.mktemp("harness")
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    return folder


def stage_file(
    place: Path,
    name: str,
    *,
    requests: int = 400,
    window_s: float = 1.0,
    systems: str = '["null"]',
    more: str = "",
    after: str = "",
) -> Path:
    path = place / f"{name}.toml"
    text = STAGE.format(
        model=place / "model", requests=requests, window_s=window_s, systems=systems, more=more
    )
    path.write_text(text + after)
    return path


def command(place: Path, *arguments: object) -> list[str]:
    return [sys.executable, "-m", "harness", *map(str, arguments), "--results", str(place / "results")]


def harness(place: Path, *arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command(place, *arguments), cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def finished(place):
    """One whole run, and what the command said."""
    return harness(place, "run", stage_file(place, "known"), "--device", "cpu", "--run", "whole", "--json")


def test_a_run_measures_what_the_null_server_does(place, finished):
    assert finished.returncode == 0, finished.stderr
    run = load_run(place / "results" / "whole")
    assert run.serving["verdict"].tolist() == ["VALID", "VALID"]
    # 20 ms to the first token and 5 ms a token, never early. How late a busy machine makes them is no test.
    assert (run.serving["ttft_ms_p50"] >= 20).all()
    assert (run.serving["tpot_ms_p50"] >= 4).all()
    assert (run.serving["events_per_token"] == 1).all()
    assert run.serving["client_headroom"].notna().all()
    assert run.serving["played_failed"].tolist() == [0, 0]
    assert (run.requests["status"] == "ok").all()
    assert verify(run.path) == []


def test_the_manifest_says_what_ran(place, finished):
    manifest = load_run(place / "results" / "whole").manifest
    (server,) = manifest.servers
    assert server.system == "null"
    assert server.argv[1:3] == ["-m", "harness.client.null_server"]
    assert server.argv[-4:] == ["--ttft-ms", "20", "--tpot-ms", "5"]
    assert manifest.command[:2] == ["run", str(place / "known.toml")]
    assert manifest.model.sha256.keys() == {"config.json"}
    assert manifest.client_ceiling.events_per_s > 0
    assert 4 <= manifest.client_ceiling.tokens < 8  # as the shorter answers of the stage, which are 4 to 8
    assert manifest.environments["project"].packages["pydantic"]
    assert {schedule.file for schedule in manifest.schedules} == {
        "schedules/closed-r0.jsonl.gz", "schedules/open-r0.jsonl.gz", "schedules/warmup-r0.jsonl.gz",
    }  # fmt: skip
    assert {schedule.file for schedule in manifest.schedules} <= {stored.path for stored in manifest.files}
    for schedule in manifest.schedules:
        path = place / "results" / "whole" / schedule.file
        assert sha256_of(gzip.decompress(path.read_bytes())) == schedule.sha256
    assert {cell.schedule_sha256 for cell in manifest.cells} < {each.sha256 for each in manifest.schedules}
    assert manifest.planned_cells == len(manifest.cells) == 2


def test_json_output_has_every_row_and_only_json(place, finished):
    printed = json.loads(finished.stdout)
    assert printed["run"] == "whole"
    assert [row["load"] for row in printed["serving"]] == ["closed", "poisson"]
    assert printed["correctness"] == []


def in_process(place: Path, *arguments: object) -> int:
    return main([*map(str, arguments), "--results", str(place / "results")])


def test_reading_commands_agree(place, finished, capsys):
    assert in_process(place, "verify", "whole") == 0
    assert in_process(place, "report", "whole") == 0
    printed = capsys.readouterr().out
    assert "every checksum and every value" in printed
    assert "VALID" in printed and "serving.csv" in printed
    assert in_process(place, "list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert {"run": "whole", "state": "complete"}.items() <= listed[0].items()


def test_a_damaged_run_is_exit_code_1(place, finished, capsys, tmp_path):
    shutil.copytree(place / "results" / "whole", tmp_path / "results" / "whole")
    table = tmp_path / "results" / "whole" / "serving.csv"
    table.write_text(table.read_text().replace(",VALID,", ",INVALID,", 1))
    assert in_process(tmp_path, "verify", "whole") == 1
    assert "verdict is 'INVALID', raw rows give 'VALID'" in capsys.readouterr().out
    assert in_process(tmp_path, "report", "whole") == 1
    assert "is damaged: serving.csv" in capsys.readouterr().err


def test_a_taken_name_is_refused_before_anything_runs(place, finished, capsys):
    assert in_process(place, "run", place / "known.toml", "--device", "cpu", "--run", "whole") == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and "exists already" in said
    assert said.count("\n") == 1


def test_an_invalid_cell_is_kept_and_makes_the_exit_code_1(place, capsys):
    short = stage_file(place, "short", requests=3)
    assert in_process(place, "run", short, "--device", "cpu", "--run", "short") == 1
    printed = capsys.readouterr().out
    assert "null, closed r0: INVALID: " in printed
    assert "schedule_too_short: all of its 3 requests" in printed
    rows = load_run(place / "results" / "short").serving
    assert rows["verdict"].tolist() == ["INVALID", "VALID"]
    assert verify(place / "results" / "short") == []


NO_CELLS = """
description = "greedy output alone"
model = "{model}"
max_model_len = 128
seed = 1
[cpu]
systems = ["null"]
dtype = "float32"
[cpu.correctness]
prompts = 2
max_tokens = 4
systems = ["null"]
min_identical = 0.5
min_forced_agreement = 0.5
"""


def test_a_stage_without_cells_compares_alone(place, capsys, monkeypatch):
    answer = dict(prompt_ids=[1], prompt_tokens=1, ids=[5, 6], text="x", finish="length", gaps=[1.0, 2.0])
    reference = dict(device="cpu", dtype="float32", attention="sdpa", packages={}, wall_s=1.0)
    monkeypatch.setattr("harness.check.run_reference", lambda *_: reference | {"answers": [answer] * 2})
    path = place / "alone.toml"
    path.write_text(NO_CELLS.format(model=place / "model"))
    assert in_process(place, "run", path, "--device", "cpu", "--run", "alone") == 1
    printed = capsys.readouterr()
    assert "correctness: 0 of 2 prompts identical" in printed.out
    assert "correctness: null: 0 of 2 prompts identical, declared is a share of 0.5" in printed.err
    run = load_run(place / "results" / "alone")
    assert run.serving.empty and run.requests.empty
    assert len(run.correctness) == 2
    assert run.manifest.reference_check.identical_share == 0
    assert len(run.manifest.servers) == 1
    assert verify(run.path) == []
    assert in_process(place, "report", "alone") == 0
    assert main(["plan", str(path), "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "null up" in said and "greedy output of 2 prompts against transformers" in said


def test_a_server_that_does_not_start_makes_rows_that_say_so(place, capsys, monkeypatch):
    ends = dataclasses.replace(
        NULL, command=lambda _target, _port: ["-c", "print('why'); raise SystemExit(3)"]
    )
    monkeypatch.setitem(SYSTEMS, "null", ends)
    known = stage_file(place, "known")
    assert in_process(place, "run", known, "--device", "cpu", "--run", "unstarted") == 1
    printed = capsys.readouterr()
    assert printed.err.rstrip().endswith("\nwhy")
    run = load_run(place / "results" / "unstarted")
    assert run.serving["verdict"].tolist() == ["INVALID", "INVALID"]
    assert set(run.serving["reasons"]) == {"not_measured: server ended with status 3 before it was ready"}
    assert run.manifest.servers[0].startup_s is None
    assert verify(run.path) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nope"], "unknown stage 'nope'; there are: "),
        (["run", "smoke", "--env", "vllm=/no/python"], "--env vllm: /no/python is not an executable file"),
        (["report", "nope"], "no run 'nope'"),
        (["verify", "nope"], "no run 'nope'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(place, capsys, arguments, message):
    assert in_process(place, *arguments) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_the_next_run_of_a_stage_says_that_one_was_killed(place, capsys):
    partial = place / "results" / ".dead.partial"
    partial.mkdir(parents=True)
    begun = started().model_copy(update={"run": "dead", "stage": "known"})
    (partial / "started.json").write_text(begun.model_dump_json())
    known = stage_file(place, "known")
    assert in_process(place, "run", known, "--device", "cpu", "--run", "after", "--model", "no") == 2
    said = capsys.readouterr().err
    assert f"incomplete run of this stage at {partial}: --run dead goes on with it" in said
    assert "model 'no' cannot be prepared: unknown model 'no'" in said


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_run_leaves_a_partial_folder_and_no_process(place, how):
    name = f"killed-{how.name.lower()}"
    long = stage_file(place, name, window_s=120)
    run = subprocess.Popen(
        command(place, "run", long, "--device", "cpu", "--run", name),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    partial = place / "results" / f".{name}.partial"
    wait_until(lambda: any(runs_the_server(pid) for pid in descendants(run.pid)), "no server was started")
    started = descendants(run.pid)
    run.send_signal(how)
    errors = run.communicate()[1]
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started), "a process was left behind")
    assert not (place / "results" / name).exists()
    with pytest.raises(IncompleteRun):
        load_run(partial)
    assert {"run": name, "state": "incomplete"}.items() <= vars(
        next(state for state in list_runs(place / "results") if state.run == name)
    ).items()
    assert in_process(place, "verify", name) == 1
    if how is signal.SIGINT:
        assert run.returncode == 130
        assert errors.endswith("interrupted: servers are stopped; the same command with --run goes on\n")


def runs_the_server(pid: int) -> bool:
    try:
        return b"harness.client.null_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def descendants(pid: int) -> list[int]:
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found, generation = [], {pid}
    while generation:
        generation = {child for child, parent in parents.items() if parent in generation}
        found += generation
    return found
