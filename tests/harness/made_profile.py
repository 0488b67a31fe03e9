"""A profile made by hand: kernels of known lengths at known times, and the run that holds it."""

from __future__ import annotations

from pathlib import Path

from harness.book import ScheduleBook
from harness.plan import build_cell
from harness.profile_summary import ProfiledLoad, summarised
from harness.schema import (
    SCHEMA_VERSION,
    GpuInfo,
    Hardware,
    KernelRow,
    Manifest,
    ModelInfo,
    ProfileRow,
    StepsRow,
    StepTimeRow,
)
from harness.stage import ProfilePlan
from harness.store import Run, RunWriter, load_run
from harness.tables import records_to_csv, records_to_frame
from harness.workload.schedule import Schedule
from tests.harness.made import identity, started

TRACED, TIMED = 10, 20
LLAMA_190M = dict(
    layers=20, hidden=768, heads=12, kv_heads=12, head_dim=64, intermediate=2048, vocab=32_000, tied=0
)
MODEL = ModelInfo(name="llama-190m", weights="random", source="seed 0", sha256={}, shape=LLAMA_190M)
H200 = GpuInfo(
    index=0, name="NVIDIA H200", uuid="GPU-1", driver="580.159.04", memory_bytes=150_754_820_096,
    max_sm_clock_mhz=1980, max_memory_clock_mhz=3201, power_limit_mw=700_000, ecc=True,
)  # fmt: skip
KERNELS = {
    "nvjet_tst_64x8_64x16_1x4_h_bz_coopB_TNT": 80,
    "_decode_kernel": 25,
    "_rms_norm_kernel": 41,
    "_rope_and_write_kernel": 20,
    "_silu_mul_kernel": 20,
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MaxOps<float>>>(int)": 1,
    "Memcpy HtoD (Pinned -> Device)": 1,
    "void at::native::index_elementwise_kernel<128, 4>(long)": 6,
}
"""Launches of each in a step."""
KERNEL_NS, PAUSE_NS = 2_000, 500


def profile_plan(concurrencies: tuple[int, ...]) -> ProfilePlan:
    return ProfilePlan(
        concurrencies=concurrencies, prompts={"kind": "token_ids", "length": [64, 192]}, output=[32, 96],
        warm_steps=2, timed_steps=TIMED, traced_steps=TRACED,
    )  # fmt: skip


def kernel_rows(load: str, scale: int) -> list[KernelRow]:
    """TRACED steps: each kernel takes scale * KERNEL_NS, then PAUSE_NS nothing runs."""
    rows, at = [], 0
    for _ in range(TRACED):
        for name, launches in KERNELS.items():
            for _ in range(launches):
                length = scale * KERNEL_NS
                rows.append(KernelRow(load=load, kernel=name, start_ns=at, duration_ns=length, own_ns=length))
                at += length + PAUSE_NS
    return rows


def step_rows(load: str, concurrency: int, wall_us: int) -> list[StepTimeRow]:
    parts = dict(schedule_ns=8_000, send_ns=30_000, launch_ns=20_000, collect_ns=300_000, process_ns=10_000)
    return [
        StepTimeRow(load=load, step=step, tokens=concurrency, wall_ns=1000 * (wall_us + step % 2), **parts)
        for step in range(TIMED)
    ]


def profiled(schedule: Schedule, run: str = "p1") -> ProfiledLoad:
    return ProfiledLoad(run, schedule, TRACED, "cuda", "bfloat16", H200.name, MODEL)


def make_profile(results: Path, name: str = "p1", concurrencies: tuple[int, ...] = (1, 64)) -> Run:
    """Stores a profile under `results` and loads it."""
    plan = profile_plan(concurrencies)
    schedules = [build_cell(plan.cell_at(concurrency), 0, 1) for concurrency in concurrencies]
    writer = RunWriter(results, name)
    writer.note(started())
    book = ScheduleBook(writer.folder / "schedules")
    steps: list[StepTimeRow] = []
    kernels: list[KernelRow] = []
    for number, schedule in enumerate(schedules, 1):
        book.freeze(schedule)
        steps += step_rows(schedule.name, concurrencies[number - 1], 480 * number)
        kernels += kernel_rows(schedule.name, number)
    loads = [profiled(schedule, name) for schedule in schedules]
    tables = records_to_frame(StepTimeRow, steps), records_to_frame(KernelRow, kernels)
    in_steps, by_kernel = summarised(loads, *tables)
    writer.write("step_times.csv.gz", records_to_csv(StepTimeRow, steps))
    writer.write("kernels.csv.gz", records_to_csv(KernelRow, kernels))
    writer.write("steps.csv", records_to_csv(StepsRow, in_steps))
    writer.write("profile.csv", records_to_csv(ProfileRow, by_kernel))
    manifest = Manifest(
        schema_version=SCHEMA_VERSION, run=name, stage="profile", stage_sha256="0" * 64,
        created_at="2026-01-01T00:00:00Z", finished_at="2026-01-01T00:05:00Z", command=["run", "profile"],
        source=identity().source, box="nvidia-h200-16c", environments={}, servers=[], model=MODEL,
        hardware=Hardware(cpu_model="a cpu", cpu_cores=16, memory_bytes=2**37, kernel="6.1", gpus=[H200]),
        schedules=book.listed(), client_ceiling=None, reference_check=None, cells=[], files=[], logs=[],
        complete=False,
    )  # fmt: skip
    return load_run(writer.finish(manifest, []))
