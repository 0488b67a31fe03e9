import pytest

from harness.errors import BadInput
from harness.plan import build_schedules, cell_id, estimated_seconds, planned_cells, present_systems
from harness.stage import load_stage, stage_names
from harness.systems.environment import Interpreter, find_environments

SMALL = """
description = "small"
model = "m"
max_model_len = 128
seed = 1
[cpu]
systems = ["engine"]
dtype = "float32"
client_workers = 1
limits = { lag_p99_ms = 250 }
warmup = { requests = 4, concurrency = 2, max_tokens = [4, 4] }
[[cpu.cells]]
name = "closed"
load = "closed"
concurrency = 2
requests = 20
max_tokens = [8, 8]
ramp_s = 1
window_s = 10
"""


def stage_from(tmp_path, text):
    (tmp_path / "small.toml").write_text(text)
    return load_stage(str(tmp_path / "small.toml"))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_smoke_stage_is_whole(device):
    stage = load_stage("smoke")
    plan = stage.on(device)
    schedules = build_schedules(stage, plan)
    assert {cell.load for cell in plan.cells} == {"closed", "poisson"}
    assert all(cell.window_s >= plan.limits.min_window_s for cell in plan.cells)
    assert plan.correctness.prompts >= 16
    assert plan.correctness.systems == ("engine",)
    assert {"warmup", "correctness"} < set(schedules)
    prompts = [{request.prompt for request in schedule.requests} for schedule in schedules.values()]
    assert sum(map(len, prompts)) == len(set().union(*prompts)), "a prompt is in two schedules"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_correctness_stage_compares_and_times_nothing(device):
    stage = load_stage("correctness")
    plan = stage.on(device)
    schedules = build_schedules(stage, plan)
    assert set(schedules) == {"correctness"} and plan.cells == ()
    assert len(schedules["correctness"].requests) == 64
    assert plan.dtype == plan.correctness.dtype
    strict = (plan.correctness.min_identical, plan.correctness.min_forced_agreement) == (1, 1)
    assert strict == (plan.dtype == "float32")


def test_an_unknown_stage_says_what_there_is():
    assert "smoke" in stage_names()
    with pytest.raises(BadInput, match=r"unknown stage 'nope'; there are: .*smoke"):
        load_stage("nope")
    with pytest.raises(BadInput, match=r"unknown stage 'no/such\.toml'"):
        load_stage("no/such.toml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("concurrency = 2\nrequests", "requests", "load 'closed' needs concurrency"),
        ("concurrency = 2\nrequests", "rate_rps = 1.0\nconcurrency = 2\nrequests", "takes no rate_rps"),
        ("window_s = 10", "window_s = 0", "cpu.cells.0.window_s"),
        ("window_s = 10", "windw_s = 10", "cpu.cells.0"),
        ('load = "closed"', 'load = "bursts"', "cpu.cells.0.load"),
        ('systems = ["engine"]', "systems = []", "cpu.systems"),
        ("seed = 1", "seed = ", r"small\.toml"),
        ("client_workers = 1\n", "", "cells need client_workers"),
        (SMALL[SMALL.index("[[cpu.cells]]") :], "", "neither cells nor correctness"),
    ],
)
def test_a_wrong_stage_file_is_named_with_the_field(tmp_path, old, new, message):
    with pytest.raises(BadInput, match=message):
        stage_from(tmp_path, SMALL.replace(old, new, 1))


def test_a_device_that_a_stage_does_not_know_is_named(tmp_path):
    stage = stage_from(tmp_path, SMALL)
    with pytest.raises(BadInput, match="stage small has no part for cuda"):
        stage.on("cuda")


def test_systems_without_an_environment_are_left_out(tmp_path):
    plan = load_stage("smoke").on("cuda")
    environments = find_environments([], tmp_path)
    present, absent = present_systems(plan, "cuda", environments)
    assert ([chosen.label for chosen in present], absent) == (["engine"], ["vllm", "sglang"])
    environments["sglang"] = Interpreter("sglang", tmp_path / "python")
    present, absent = present_systems(plan, "cuda", environments)
    assert ([chosen.label for chosen in present], absent) == (["engine", "sglang"], ["vllm"])


def test_a_system_that_does_not_run_on_the_device_is_refused(tmp_path):
    stage = stage_from(tmp_path, SMALL.replace('["engine"]', '["vllm"]'))
    with pytest.raises(BadInput, match="vllm does not run on cpu, only on cuda"):
        present_systems(stage.on("cpu"), "cpu", find_environments([], tmp_path))


def test_cells_are_planned_in_order_and_their_time_is_summed(tmp_path):
    stage = stage_from(tmp_path, SMALL.replace('["engine"]', '["engine", "null:flat-out"]'))
    plan = stage.on("cpu")
    systems, _ = present_systems(plan, "cpu", find_environments([], tmp_path))
    cells = planned_cells(plan, systems)
    assert [(cell.position, cell.chosen.label, cell.cell.name) for cell in cells] == [
        (0, "engine", "closed"),
        (1, "null:flat-out", "closed"),
    ]
    assert estimated_seconds(plan, "cpu", systems) == pytest.approx(2 * 11 + 10 + 1)


def test_a_cell_is_addressed_by_its_content():
    assert cell_id({"a": 1, "b": [2, 3]}) == cell_id({"b": (2, 3), "a": 1})
    assert cell_id({"a": 1}) != cell_id({"a": 2})
    assert len(cell_id({})) == 16
