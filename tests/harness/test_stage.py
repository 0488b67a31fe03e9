import pytest

from harness.errors import BadInput
from harness.plan import build_cell, build_correctness, build_warmup, cell_id, present_systems
from harness.stage import load_stage, stage_names
from harness.systems import choose
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
warmup = { requests = 4, concurrency = 2, output = [4, 4] }
[[cpu.cells]]
name = "closed"
load = { shape = "closed", concurrency = 2, requests = 20 }
output = [8, 8]
ramp_s = 1
window_s = 10
"""


def stage_from(tmp_path, text):
    (tmp_path / "small.toml").write_text(text)
    return load_stage(str(tmp_path / "small.toml"))


def all_plans():
    for name in stage_names():
        stage = load_stage(name)
        for device in ("cpu", "cuda"):
            if getattr(stage.declared, device) is not None:
                yield pytest.param(stage, stage.on(device), id=f"{name}-{device}")


@pytest.mark.parametrize(("stage", "plan"), list(all_plans()))
def test_every_stage_is_whole(stage, plan):
    assert stage.declared.description
    for cell in plan.cells:
        assert cell.window_s >= plan.limits.min_window_s
    for label in plan.systems:
        choose(label)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_no_prompt_of_the_smoke_stage_is_sent_twice(device):
    stage = load_stage("smoke")
    plan = stage.on(device)
    seed = stage.declared.seed
    assert {cell.load.shape for cell in plan.cells} == {"closed", "poisson"}
    assert plan.correctness.prompts >= 16
    assert plan.correctness.systems == ("engine",)
    schedules = [build_cell(cell, repetition, seed) for cell in plan.cells for repetition in (0, 1)]
    schedules += [build_warmup(plan.warmup, number, seed) for number in (0, 1, 2)]
    schedules.append(build_correctness(plan.correctness, str))
    prompts = [{request.prompt for request in schedule.requests} for schedule in schedules]
    assert sum(map(len, prompts)) == len(set().union(*prompts)), "a prompt is in two schedules"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_correctness_stage_compares_and_times_nothing(device):
    plan = load_stage("correctness").on(device)
    assert plan.cells == ()
    assert len(build_correctness(plan.correctness, str).requests) == 64
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
        ("concurrency = 2, requests = 20", "requests = 20", r"cpu\.cells\.0\.load\.closed\.concurrency"),
        ("requests = 20 }", "requests = 20, rate_rps = 1.0 }", r"load\.closed\.rate_rps"),
        ("requests = 20", "requests = 1", "requests 1 must be at least concurrency 2"),
        ('name = "closed"', 'name = "Closed loop"', r"cpu\.cells\.0\.name"),
        ("ramp_s = 1", "ramp_s = 1.005", r"cpu\.cells\.0\.ramp_s"),
        ("window_s = 10", "window_s = 0", "cpu.cells.0.window_s"),
        ("window_s = 10", "windw_s = 10", "cpu.cells.0"),
        ('shape = "closed"', 'shape = "flood"', "cpu.cells.0.load"),
        ('systems = ["engine"]', "systems = []", "cpu.systems"),
        ("seed = 1", "seed = ", r"small\.toml"),
        ("client_workers = 1\n", "", "cells and searches need client_workers"),
        (SMALL[SMALL.index("[[cpu.cells]]") :], "", "neither cells, searches nor correctness"),
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


def test_a_cell_is_addressed_by_its_content():
    assert cell_id({"a": 1, "b": [2, 3]}) == cell_id({"b": (2, 3), "a": 1})
    assert cell_id({"a": 1}) != cell_id({"a": 2})
    assert len(cell_id({})) == 16
