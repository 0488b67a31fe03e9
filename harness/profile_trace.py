"""The engine in this process under closed loops: its steps timed, then traced with torch.profiler."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from engine.config import ConfigError
from engine.serving.engine import Engine
from engine.serving.request import Finish, SamplingParams
from engine.serving.startup import EngineOptions, load_engine
from engine.serving.step_times import StepTimes
from harness.errors import BadInput
from harness.progress import phase
from harness.schema import KernelRow, StepTimeRow
from harness.stage import ProfilePlan
from harness.workload.schedule import Schedule, ScheduledRequest

NAME_CHARACTERS = 300
"""Kept of a kernel's name; the rest is arguments of templates."""


@contextmanager
def _engine_has_a_say() -> Iterator[None]:
    """What the engine refuses as a BadInput."""
    try:
        yield
    except ConfigError as error:
        raise BadInput(f"engine: {error}") from error


@_engine_has_a_say()
def load(folder: Path, device: str, dtype: str, max_model_len: int) -> Engine:
    """The engine as a user gets it. Raises BadInput with what it says."""
    engine = load_engine(EngineOptions(folder, device, dtype, max_model_len))
    # As in the engine's own process: no step waits for a collection that walks through the weights.
    gc.collect()
    gc.freeze()
    return engine


@_engine_has_a_say()
def measured(
    engine: Engine, plan: ProfilePlan, schedules: Sequence[Schedule]
) -> tuple[list[StepTimeRow], list[KernelRow]]:
    """Steps and kernels of every load. Raises BadInput for a request that the engine does not take.

    All steps are timed before the first is traced: once the profiler has been on, launches take longer.
    """
    times, steps, kernels = StepTimes(engine), [], []
    for schedule in schedules:
        with phase(f"{schedule.name}: timed"):
            steps += _timed_steps(engine, times, plan, schedule)
    activity = ProfilerActivity.CUDA if engine.config.device == "cuda" else ProfilerActivity.CPU
    with _trace(activity):
        pass  # its first start takes seconds
    for schedule in schedules:
        with phase(f"{schedule.name}: traced"):
            kernels += _traced_kernels(engine, activity, plan, schedule)
    return steps, kernels


def _trace(activity: ProfilerActivity) -> profile:
    return profile(activities=[activity], acc_events=True)


class _ClosedLoop:
    """Keeps the schedule's requests in flight, as many as it says, step by step."""

    def __init__(self, engine: Engine, schedule: Schedule, warm_steps: int) -> None:
        # The pass before played the same prompts.
        engine.reset_prefix_cache()
        self._engine = engine
        self._waiting = deque(schedule.requests)
        self._running: set[int] = set()
        for _ in range(schedule.concurrency):
            self._add(self._waiting.popleft())
        for _ in range(warm_steps):
            self.step()

    def _add(self, request: ScheduledRequest) -> None:
        params = SamplingParams(max_tokens=request.max_tokens, ignore_eos=True)
        self._engine.add(request.index, request.prompt, params)
        self._running.add(request.index)

    def step(self) -> int:
        """One step of the engine; the tokens it gave. Requests that ended have successors at once."""
        updates = self._engine.step()
        for update in updates:
            if update.finish is not Finish.NOT_YET:
                self._running.remove(update.request_id)
                self._add(self._waiting.popleft())
        return sum(len(update.token_ids) for update in updates)

    def end(self) -> None:
        for request_id in self._running:
            self._engine.cancel(request_id)
        while self._engine.has_work:
            self._engine.step()
        self._engine.check()


def _timed_steps(
    engine: Engine, times: StepTimes, plan: ProfilePlan, schedule: Schedule
) -> list[StepTimeRow]:
    loop = _ClosedLoop(engine, schedule, plan.warm_steps)
    rows = []
    times.take()
    begin = perf_counter_ns()
    for step in range(plan.timed_steps):
        tokens = loop.step()
        end = perf_counter_ns()
        spent = {f"{part}_ns": spent for part, spent in times.take().items()}
        rows.append(StepTimeRow(load=schedule.name, step=step, tokens=tokens, wall_ns=end - begin, **spent))
        begin = perf_counter_ns()
    loop.end()
    return rows


def _traced_kernels(
    engine: Engine, activity: ProfilerActivity, plan: ProfilePlan, schedule: Schedule
) -> list[KernelRow]:
    loop = _ClosedLoop(engine, schedule, plan.warm_steps)
    with _trace(activity) as trace:
        for _ in range(plan.traced_steps):
            loop.step()
    loop.end()
    wanted = DeviceType.CUDA if activity is ProfilerActivity.CUDA else DeviceType.CPU
    events = [event for event in trace.events() if event.device_type == wanted]
    first_us = min(event.time_range.start for event in events)
    return [
        KernelRow(
            load=schedule.name,
            kernel=event.name[:NAME_CHARACTERS],
            start_ns=_ns(event.time_range.start - first_us),
            duration_ns=_ns(event.time_range.elapsed_us()),
            # A kernel calls no other; an operation on a CPU does.
            own_ns=_ns(
                event.time_range.elapsed_us() if wanted == DeviceType.CUDA else event.self_cpu_time_total
            ),
        )
        for event in events
    ]


def _ns(microseconds: float) -> int:
    return round(1000 * microseconds)
