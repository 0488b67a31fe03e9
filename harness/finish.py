"""From what a run in progress has on disk to a complete run: at its end, or later, where it was cut off.

A rental may end in the middle of a run. Every finished cell and all notes are in its partial folder by then;
`python -m harness finish RUN` makes a complete run of them, on any machine, that says how much is missing.
"""

from __future__ import annotations

from pathlib import Path

from harness.book import SUFFIX
from harness.errors import BadInput
from harness.rows import CellTables, RunIdentity, serving_row
from harness.schema import (
    SCHEMA_VERSION,
    CellRecord,
    CorrectnessRow,
    KneeRow,
    Manifest,
    ScheduleInfo,
    ServingRow,
    Started,
)
from harness.search import knees
from harness.store import RunWriter, StoreError, partial_path
from harness.survey import utc_now
from harness.tables import records_to_csv
from harness.workload import schedule as schedules


def finish(results: Path, run: str) -> Path:
    """Makes a complete run of the cells that an incomplete one has finished; its folder.

    Raises StoreError when there is no such run or another process writes it, BadInput when nothing in it is
    finished.
    """
    if not partial_path(results, run).is_dir():
        raise StoreError(f"there is no incomplete run {run} in {results}")
    writer = RunWriter(results, run)
    try:
        if writer.started is None or not (writer.cells or writer.started.correctness):
            raise BadInput(f"run {run} has no finished cell and no compared answer: nothing to finish")
        cells = list(writer.cells.values())
        return write_run(writer, listed(writer.folder / "schedules"), cells, _rows(writer, cells))
    finally:
        writer.close()


def write_run(
    writer: RunWriter, schedules: list[ScheduleInfo], cells: list[CellRecord], rows: list[ServingRow]
) -> Path:
    """The last tables and the manifest of a run; its folder under its final name."""
    started = _noted(writer)
    if started.reference_check is not None:
        writer.write("correctness.csv", records_to_csv(CorrectnessRow, started.correctness))
    if started.searches:
        writer.write("knee.csv", records_to_csv(KneeRow, knees(started.searches, rows)))
    return writer.finish(_manifest(started, schedules, cells), rows)


def identity_of(writer: RunWriter, record: CellRecord) -> RunIdentity:
    """What a cell's row says of the machine and the code that measured it."""
    started = _noted(writer)
    part = started.sessions[record.session]
    return RunIdentity(writer.run, part.box, part.hardware, part.source, started.model)


def listed(folder: Path) -> list[ScheduleInfo]:
    """The schedule files in a run's folder of schedules."""
    return [
        ScheduleInfo(file=f"{folder.name}/{path.name}", sha256=schedules.read(path)[1])
        for path in sorted(folder.glob(f"*{SUFFIX}"))
    ]


def _rows(writer: RunWriter, cells: list[CellRecord]) -> list[ServingRow]:
    return [
        serving_row(identity_of(writer, record), record, CellTables.of(writer.frames(record.cell)))
        for record in cells
    ]


def _noted(writer: RunWriter) -> Started:
    assert writer.started is not None  # since the run was begun
    return writer.started


def _manifest(started: Started, schedules: list[ScheduleInfo], cells: list[CellRecord]) -> Manifest:
    first, *later = started.sessions
    return Manifest(
        schema_version=SCHEMA_VERSION,
        run=started.run,
        stage=started.stage,
        stage_sha256=started.stage_sha256,
        created_at=first.created_at,
        finished_at=utc_now(),
        command=first.command,
        source=first.source,
        box=first.box,
        hardware=first.hardware,
        environments=first.environments,
        servers=started.servers,
        model=started.model,
        schedules=schedules,
        client_ceiling=first.client_ceiling,
        reference_check=started.reference_check,
        cells=cells,
        files=[],
        logs=[],
        complete=False,
        later_sessions=later,
        searches=started.searches,
        planned_cells=started.planned_cells,
    )
