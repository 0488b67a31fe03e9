"""From what a run in progress has on disk to a complete run: at its end, or later, where it was cut off.

A rental may end in the middle of a run. Every finished cell and all notes are in its partial folder by then;
`python -m harness finish RUN` makes a complete run of them, on any machine, that says how much is missing.
"""

from __future__ import annotations

from pathlib import Path

from harness.book import listed
from harness.errors import BadInput
from harness.provenance import utc_now
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
from harness.tables import records_to_csv


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
        schedules = listed(writer.folder / "schedules")
        return write_run(writer, schedules, cells, _rows(writer, cells), utc_now())
    finally:
        writer.close()


def write_run(
    writer: RunWriter,
    schedules: list[ScheduleInfo],
    cells: list[CellRecord],
    rows: list[ServingRow],
    finished_at: str,
) -> Path:
    """The last tables and the manifest of a run; its folder under its final name."""
    started = _noted(writer)
    if started.reference_check is not None:
        writer.write("correctness.csv", records_to_csv(CorrectnessRow, started.correctness))
    if started.searches:
        writer.write("knee.csv", records_to_csv(KneeRow, knees(started.searches, rows)))
    return writer.finish(manifest_of(started, schedules, cells, finished_at), rows)


def identity_of(writer: RunWriter, record: CellRecord) -> RunIdentity:
    """What a cell's row says of the machine and the code that measured it."""
    started = _noted(writer)
    part = started.sessions[record.session]
    return RunIdentity(writer.run, part.box, part.hardware, part.source, started.model)


def _rows(writer: RunWriter, cells: list[CellRecord]) -> list[ServingRow]:
    return [
        serving_row(identity_of(writer, record), record, CellTables.of(writer.frames(record.cell)))
        for record in cells
    ]


def _noted(writer: RunWriter) -> Started:
    assert writer.started is not None  # since the run was begun
    return writer.started


def manifest_of(
    started: Started, schedules: list[ScheduleInfo], cells: list[CellRecord], finished_at: str
) -> Manifest:
    """What the notes of a run say of it, for RunWriter.finish."""
    first, *later = started.sessions
    return Manifest(
        schema_version=SCHEMA_VERSION,
        run=started.run,
        stage=started.stage,
        stage_sha256=started.stage_sha256,
        created_at=first.created_at,
        finished_at=finished_at,
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
