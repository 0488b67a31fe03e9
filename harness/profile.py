"""The stage `profile`: where the time of a step of the engine goes, by part of the host and by kernel."""

from __future__ import annotations

from pathlib import Path

from harness.book import ScheduleBook
from harness.errors import BadInput
from harness.finish import manifest_of
from harness.gpu import strangers_on
from harness.notes import Notes
from harness.plan import build_cell
from harness.profile_summary import ProfiledLoad, summarised
from harness.profile_trace import load, measured
from harness.progress import phase, say
from harness.provenance import utc_now
from harness.schema import KernelRow, ProfileRow, StepsRow, StepTimeRow
from harness.store import RunWriter, check_name_is_free
from harness.survey import RunOptions, Survey, survey
from harness.systems.engine import ENGINE
from harness.tables import records_to_csv, records_to_frame


def run_profile(options: RunOptions) -> Path:
    """Measures the stage in this process and stores it; the folder of the run.

    Raises BadInput, ScheduleError or StoreError when it cannot be done.
    """
    if options.systems not in ((), (ENGINE.name,)):
        raise BadInput(f"stage {options.stage.name} looks into the engine of this process, nothing else")
    if options.run is not None:
        check_name_is_free(options.results, options.run)
    found = survey(options)
    writer = RunWriter(options.results, found.identity.run)
    try:
        return _measure(options, found, writer)
    finally:
        writer.close()


def _measure(options: RunOptions, found: Survey, writer: RunWriter) -> Path:
    declared, identity = options.stage.declared, found.identity
    plan = options.stage.on(options.device)
    notes = Notes(writer, options, found)
    if found.source.diff is not None:
        writer.write("dirty.diff.gz", found.source.diff.encode())
    book = ScheduleBook(writer.folder / "schedules")
    cells = [plan.profile.cell_at(concurrency) for concurrency in plan.profile.concurrencies]
    schedules = [build_cell(cell, 0, declared.seed) for cell in cells]
    for schedule in schedules:
        book.freeze(schedule)
    for process in strangers_on(found.gpu.nvml, found.gpu.gpus):
        say(f"{process} is not part of this run: its work stands between ours")
    with phase("engine"):
        engine = load(found.model.folder, options.device, plan.dtype, declared.max_model_len)
    steps, kernels = measured(engine, plan.profile, schedules)
    gpus = identity.hardware.gpus
    loads = [
        ProfiledLoad(
            run=identity.run,
            schedule=schedule,
            traced_steps=plan.profile.traced_steps,
            device=options.device,
            dtype=plan.dtype,
            gpu=gpus[0].name if gpus else None,
            model=identity.model,
        )
        for schedule in schedules
    ]
    in_steps, by_kernel = summarised(
        loads, records_to_frame(StepTimeRow, steps), records_to_frame(KernelRow, kernels)
    )
    writer.write("step_times.csv.gz", records_to_csv(StepTimeRow, steps))
    writer.write("kernels.csv.gz", records_to_csv(KernelRow, kernels))
    writer.write("steps.csv", records_to_csv(StepsRow, in_steps))
    writer.write("profile.csv", records_to_csv(ProfileRow, by_kernel))
    # The last session is the one that measured everything.
    noted = notes.started.model_copy(update={"sessions": notes.started.sessions[-1:]})
    return writer.finish(manifest_of(noted, book.listed(), [], utc_now()), [])
