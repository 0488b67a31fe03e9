"""From the steps and kernels of a profile to its summary tables; `verify` computes them again."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from harness.roofline import floor_tokens_per_s
from harness.schema import ModelInfo, ProfileRow, StepsRow
from harness.store import Run
from harness.tables import records_to_csv
from harness.workload import schedule as schedules
from harness.workload.checks import ScheduleError
from harness.workload.schedule import Schedule

PARTS = ("schedule", "send", "launch", "collect", "process")
NS_PER_US = 1000
PAUSE_NS = 1_000
"""Pauses of the device from here on are counted: between kernels of one graph it is shorter."""

CATEGORIES: dict[str, str] = {
    "sampling": r"append_kernel|argmax|arg_?max|MaxOps|MaxNan|topk|sample|_max\b|::max\b",
    "attention": r"attention|_decode_kernel|_combine_kernel|flash|fmha|softmax",
    "norm": r"rms_?norm|rsqrt",
    "rope": r"rope",
    "activation": r"silu",
    "gemm": r"few_rows|gemm|gemv|nvjet|cutlass|split_?k|cublas|addmm|matmul|linear|::b?mm\b",
    "copy": r"memcpy|memset|(?<!index_)copy|aten::(cat|clone|to)\b",
}
"""A kernel belongs to the first category whose pattern its name holds; to `other` without one: embedding,
inputs of the step, update of the tables."""
OTHER = "other"


@dataclass(frozen=True)
class ProfiledLoad:
    """What was declared for a load of a profile."""

    run: str
    schedule: Schedule
    traced_steps: int
    device: str
    dtype: str
    gpu: str | None
    model: ModelInfo


def kernel_group(name: str) -> str:
    """A kernel's name without return type, template arguments, parameters and leading namespaces."""
    bare = re.split(r"[<(]", name.removeprefix("void "), maxsplit=1)[0].strip() or name
    return bare if bare.startswith("aten::") else bare.rpartition("::")[2]


def category(name: str) -> str:
    """The category of a kernel by its whole name: what a template works on stands in its arguments."""
    found = (kind for kind, pattern in CATEGORIES.items() if re.search(pattern, name, re.IGNORECASE))
    return next(found, OTHER)


def profile_rows(load: ProfiledLoad, kernels: pd.DataFrame) -> list[ProfileRow]:
    """A row for each group of kernels of a load, the longest first. kernels: columns of KernelRow."""
    kinds = {name: (kernel_group(name), category(name)) for name in kernels["kernel"].unique()}
    group, kind = zip(*(kinds[name] for name in kernels["kernel"]), strict=True)
    keyed = pd.DataFrame({"kernel": group, "category": kind, "own_ns": kernels["own_ns"].to_numpy("int64")})
    sums = keyed.groupby(["kernel", "category"])["own_ns"].agg(["sum", "size"]).reset_index()
    total = int(sums["sum"].sum())
    rows = [
        ProfileRow(
            run=load.run,
            load=load.schedule.name,
            concurrency=load.schedule.concurrency,
            kernel=kernel,
            category=kind,
            step_us=own / load.traced_steps / NS_PER_US,
            launches_per_step=launches / load.traced_steps,
            share=own / total,
        )
        for kernel, kind, own, launches in sums.itertuples(index=False)
    ]
    return sorted(rows, key=lambda row: (-row.step_us, row.kernel, row.category))


def steps_row(load: ProfiledLoad, steps: pd.DataFrame, kernels: pd.DataFrame) -> StepsRow:
    """The steps of a load in one row. steps, kernels: columns of StepTimeRow and KernelRow."""
    wall_us = steps["wall_ns"].to_numpy("float64") / NS_PER_US
    parts = {f"{part}_us": float(steps[f"{part}_ns"].mean()) / NS_PER_US for part in PARTS}
    busy_ns, pauses, span_ns = _busy(kernels)
    busy_us = busy_ns / load.traced_steps / NS_PER_US
    return StepsRow(
        run=load.run,
        load=load.schedule.name,
        concurrency=load.schedule.concurrency,
        device=load.device,
        dtype=load.dtype,
        timed_steps=len(steps),
        traced_steps=load.traced_steps,
        tokens_per_step=float(steps["tokens"].mean()),
        wall_us=float(wall_us.mean()),
        wall_us_p50=float(np.quantile(wall_us, 0.5)),
        wall_us_p99=float(np.quantile(wall_us, 0.99)),
        **parts,
        other_us=float(wall_us.mean()) - sum(parts.values()),
        busy_us=busy_us,
        busy_share=busy_us / float(wall_us.mean()),
        gap_us=float(wall_us.mean()) - busy_us,
        pauses_per_step=pauses / load.traced_steps,
        traced_us=span_ns / load.traced_steps / NS_PER_US,
        floor_us=floor_us(load),
    )


def _busy(kernels: pd.DataFrame) -> tuple[int, int, int]:
    """Nanoseconds in which a kernel ran; pauses of PAUSE_NS and more; first start to last end (ns)."""
    ordered = kernels.sort_values("start_ns")
    start = ordered["start_ns"].to_numpy("int64")
    end = start + ordered["duration_ns"].to_numpy("int64")
    over = np.maximum.accumulate(end)
    pauses = np.maximum(0, start[1:] - over[:-1])
    span = int(over[-1] - start[0])
    return span - int(pauses.sum()), int((pauses >= PAUSE_NS).sum()), span


def floor_us(load: ProfiledLoad) -> float | None:
    """Least time of a step that gives each request in flight one token, prompts included (harness.roofline);
    None where the GPU's rates are not known."""
    requests = pd.DataFrame(
        {
            "prompt_tokens": [len(request.prompt) for request in load.schedule.requests],
            "cached_tokens": 0,
            "output_tokens": [request.max_tokens for request in load.schedule.requests],
            "status": "ok",
        }
    )
    concurrency = load.schedule.concurrency
    allowed = floor_tokens_per_s(load.model.shape, load.dtype, load.gpu, requests, concurrency)
    return None if allowed is None else 1e6 * concurrency / allowed


def summarised(
    loads: Iterable[ProfiledLoad], steps: pd.DataFrame, kernels: pd.DataFrame
) -> tuple[list[StepsRow], list[ProfileRow]]:
    """Rows of steps.csv and of profile.csv."""
    in_steps, by_kernel = [], []
    for load in loads:
        own = kernels[kernels["load"] == load.schedule.name]
        in_steps.append(steps_row(load, steps[steps["load"] == load.schedule.name], own))
        by_kernel += profile_rows(load, own)
    return in_steps, by_kernel


def differences(run: Run) -> list[str]:
    """Where steps.csv and profile.csv are not what the raw tables and schedules give, a line each."""
    written = run.records(StepsRow)
    if not written:
        return []
    try:
        loads = [_declared(run, row) for row in written]
    except ScheduleError as error:
        return [f"profile: {error}"]
    steps, profile = summarised(loads, run.table("step_times.csv.gz"), run.table("kernels.csv.gz"))
    return [
        f"{name} is not what the raw rows give"
        for name, row, computed in (
            ("steps.csv", StepsRow, steps),
            ("profile.csv", ProfileRow, profile),
        )
        if run.table_bytes(name) != records_to_csv(row, computed)
    ]


def _declared(run: Run, row: StepsRow) -> ProfiledLoad:
    """A load as its row, its schedule and the manifest say."""
    gpus = run.manifest.hardware.gpus
    return ProfiledLoad(
        run=run.manifest.run,
        schedule=schedules.read(run.path / f"schedules/{row.load}.jsonl.gz")[0],
        traced_steps=row.traced_steps,
        device=row.device,
        dtype=row.dtype,
        gpu=gpus[0].name if gpus else None,
        model=run.manifest.model,
    )
