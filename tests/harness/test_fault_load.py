"""Faults of other harnesses in what they send and when; see test_public_faults.py."""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.client.wire import Target, wire_bytes
from harness.errors import BadInput
from harness.plan import build_cell, build_correctness, build_warmup
from harness.stage import CellPlan, DevicePlan, load_stage, stage_names
from harness.systems import SYSTEMS
from harness.workload.arrivals import arrivals_ns
from harness.workload.declared import ClosedLoad, PoissonLoad
from harness.workload.schedule import Schedule, ScheduledRequest
from tests.harness.test_stage import SMALL, stage_from
from tests.harness.workload import made_traces
from tests.harness.workload.test_build import GOLDEN, made

traces = made_traces.made_traces
ROOT = Path(__file__).parents[2]
S = 10**9
WITHOUT_TRACE = sorted(GOLDEN.keys() - {"azure", "mooncake", "agentic"})

BUILD = """
import random, sys, tempfile
from pathlib import Path
import numpy
from harness.workload.schedule import write
from tests.harness.workload.test_build import made
random.seed(int(sys.argv[1]))
numpy.random.seed(int(sys.argv[1]))
with tempfile.TemporaryDirectory() as folder:
    for kind in sys.argv[2:]:
        print(write(made(kind, Path(folder)), Path(folder) / "schedule.jsonl"))
"""


@pytest.mark.parametrize("seed", ["0", "4242"])
def test_a_schedule_depends_on_its_own_seed_alone(seed: str) -> None:
    """In a fresh process, however Python's hashes and the generators that all code shares are seeded."""
    hashes = subprocess.run(
        [sys.executable, "-c", BUILD, seed, *WITHOUT_TRACE],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert hashes == [GOLDEN[kind][3] for kind in WITHOUT_TRACE]


@pytest.mark.parametrize("kind", GOLDEN)
def test_every_timed_request_states_what_it_asks(kind: str, traces: Path) -> None:
    """Of every kind of workload, on the wire: nothing is left to what a server takes for its default."""
    schedule = made(kind, traces)
    for request in schedule.requests:
        body = json.loads(wire_bytes(request, Target("h", 80, "/"), "m").partition(b"\r\n\r\n")[2])
        assert (body["temperature"], body["ignore_eos"]) == (0.0, True)
        assert body["max_tokens"] == request.max_tokens
        assert body["prompt"] == request.prompt
        assert body.keys() == {
            *("model", "prompt", "max_tokens", "temperature", "ignore_eos", "stream", "stream_options")
        }


def test_poisson_arrivals_lie_anywhere_within_a_second() -> None:
    """Also where there is but one a second: not one at each second's edge, as with counts drawn by the
    second."""
    within = [due_ns % S for due_ns in arrivals_ns(PoissonLoad(rate_rps=1), seed=3, duration_ns=4_000 * S)]
    counts = [sum(tenth * S // 10 <= due < (tenth + 1) * S // 10 for due in within) for tenth in range(10)]
    assert len(set(within)) == len(within)
    assert all(abs(count - len(within) / 10) < 4 * (len(within) / 10) ** 0.5 for count in counts)


CONTEXT_FLAGS = {
    *("--max-model-len", "--context-length", "--max-seq-len", "--max_seq_len", "--max-num-tokens"),
    "--max_num_tokens",
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_no_configuration_has_a_context_length_of_its_own(name: str) -> None:
    for configuration in SYSTEMS[name].configurations.values():
        assert not CONTEXT_FLAGS & {flag.partition("=")[0] for flag in configuration.flags}


@pytest.mark.parametrize("where", ["[cpu]\n", "[[cpu.cells]]\n"])
def test_the_context_length_of_a_stage_is_one_for_all(where: str, tmp_path: Path) -> None:
    assert stage_from(tmp_path, SMALL).declared.max_model_len == 128
    with pytest.raises(BadInput, match="max_model_len"):
        stage_from(tmp_path, SMALL.replace(where, f"{where}max_model_len = 64\n", 1))


def shortened(cell: CellPlan) -> CellPlan:
    """The same cell with as few requests as show its prompts."""
    if isinstance(cell.load, ClosedLoad):
        few = cell.load.model_copy(update={"requests": max(cell.load.concurrency, 32)})
        return cell.model_copy(update={"load": few})
    return cell.model_copy(update={"ramp_s": 0.0, "window_s": 3.0})


def played_before_and_in_cells(plan: DevicePlan, seed: int) -> Iterator[Schedule]:
    """The schedules that one server gets: greedy output, warm-up, and each cell that needs no trace."""
    if plan.correctness is not None:
        yield build_correctness(plan.correctness, str)
    if plan.warmup is not None:
        for number in range(plan.warmup.max_rounds):
            yield build_warmup(plan.warmup, number, seed)
    tried = [search.cell_at(rate) for search in plan.searches for rate in (search.low_rps, search.high_rps)]
    for cell, repetition in itertools.product((*plan.cells, *tried), range(max(plan.repetitions, 2))):
        if cell.load.shape != "trace":
            yield build_cell(shortened(cell), repetition, seed)


def start(request: ScheduledRequest) -> tuple[int, ...] | str:
    """What a prefix cache would find two prompts by: half a block of ids, or a line of text."""
    prompt = request.prompt
    return prompt.split("\n")[0] if isinstance(prompt, str) else tuple(prompt[:8])


STAGES = [
    (name, device)
    for name in stage_names()
    for device in ("cpu", "cuda")
    if getattr(load_stage(name).declared, device) is not None
]


@pytest.mark.parametrize(("name", "device"), STAGES)
def test_no_stage_measures_a_prompt_that_its_servers_have_seen(name: str, device: str) -> None:
    stage = load_stage(name)
    plan = stage.on(device)
    seen: set[tuple[int, ...] | str] = set()
    for schedule in played_before_and_in_cells(plan, stage.declared.seed):
        starts = {start(request) for request in schedule.requests}
        assert len(starts) == len(schedule.requests)
        assert not starts & seen, f"{schedule.name} begins as another schedule does"
        seen |= starts


@pytest.mark.parametrize(("name", "device"), STAGES)
def test_every_client_has_a_ceiling_at_the_streams_it_keeps_open(name: str, device: str) -> None:
    """What a client manages with few streams says little about how it does with many."""
    plan = load_stage(name).on(device)
    most = max((cell.load.concurrency for cell in plan.cells if cell.is_closed), default=0)
    assert not plan.cells or plan.ceiling.concurrency >= most
