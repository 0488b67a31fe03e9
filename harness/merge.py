"""Several runs of one stage as one: cells that were measured at different times or on different machines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.agreement import agreement
from harness.errors import BadInput
from harness.finish import write_run
from harness.rows import RunIdentity, serving_row
from harness.schema import (
    CellRecord,
    CorrectnessRow,
    Manifest,
    ReferenceCheck,
    ServingRow,
    Session,
    Started,
)
from harness.store import Run, RunWriter, load_run
from harness.verify import tables_of


def merge(results: Path, name: str, runs: Sequence[str]) -> Path:
    """Makes the run `name` of all cells of complete runs, in the order given; a cell that two of them have is
    taken from the first in which it is VALID. Each row goes on saying on which machine and by which code it
    was measured.

    Raises BadInput when the runs are not of one stage, device and model, or schedules of one name differ;
    StoreError for a run that is not complete, or a name that is taken.
    """
    if len(runs) < 2:
        raise BadInput(f"{len(runs)} run given to merge; at least 2 are needed")
    parts = [load_run(results / run) for run in runs]
    _check_alike(parts)
    writer = RunWriter(results, name)
    try:
        return _merged(writer, parts)
    finally:
        writer.close()


def _check_alike(parts: Sequence[Run]) -> None:
    first = parts[0].manifest
    devices = {cell.device for part in parts for cell in part.manifest.cells}
    if len(devices) > 1:
        raise BadInput(f"the runs were measured on {' and '.join(sorted(devices))}: they cannot be merged")
    schedules = {schedule.file: schedule.sha256 for schedule in first.schedules}
    for part in parts[1:]:
        other = part.manifest
        for what, ours, theirs in (
            ("stage file", first.stage_sha256, other.stage_sha256),
            ("model", first.model, other.model),
        ):
            if ours != theirs:
                raise BadInput(f"runs {first.run} and {other.run} have another {what}: they cannot be merged")
        for schedule in other.schedules:
            if schedules.setdefault(schedule.file, schedule.sha256) != schedule.sha256:
                raise BadInput(f"runs {first.run} and {other.run} have different schedules {schedule.file}")


def _merged(writer: RunWriter, parts: Sequence[Run]) -> Path:
    first = parts[0].manifest
    sessions: list[Session] = []
    cells: list[CellRecord] = []
    rows: list[ServingRow] = []
    correctness: list[CorrectnessRow] = []
    chosen = _chosen(parts)
    for part in parts:
        for record in part.manifest.cells:
            if chosen[record.cell] is not part:
                continue
            moved = record.model_copy(
                update={"session": len(sessions) + record.session, "position": len(cells)}
            )
            cells.append(moved)
            tables = tables_of(part, record.cell)
            writer.add_cell(moved, tables.frames())
            identity = RunIdentity.of(part.manifest, record.session)
            rows.append(
                serving_row(
                    RunIdentity(writer.run, identity.box, identity.hardware, identity.source, identity.model),
                    moved,
                    tables,
                )
            )
        sessions += [_first_session(part.manifest), *part.manifest.later_sessions]
        checked = {row.system for row in correctness}
        correctness += [row for row in part.records(CorrectnessRow) if row.system not in checked]
        for schedule in part.manifest.schedules:
            target = writer.folder / schedule.file
            target.parent.mkdir(exist_ok=True)
            target.write_bytes((part.path / schedule.file).read_bytes())
    checks = [part.manifest.reference_check for part in parts if part.manifest.reference_check is not None]
    schedules = {schedule.file: schedule for part in parts for schedule in part.manifest.schedules}
    writer.note(
        Started(
            run=writer.run,
            stage=first.stage,
            stage_sha256=first.stage_sha256,
            device=first.cells[0].device if first.cells else "cpu",
            model=first.model,
            sessions=sessions,
            servers=[server for part in parts for server in part.manifest.servers],
            correctness=correctness,
            systems=list(dict.fromkeys(row.system for row in rows)),
            agrees={},
            reference_check=_summed(checks[0], correctness) if checks else None,
            searches=first.searches,
            planned_cells=max(part.manifest.planned_cells or 0 for part in parts) or None,
        )
    )
    finished_at = max(part.manifest.finished_at for part in parts)
    return write_run(writer, list(schedules.values()), cells, rows, finished_at)


def _chosen(parts: Sequence[Run]) -> dict[str, Run]:
    """Which run each cell is taken from: the first in which it is VALID, else the first that has it.

    Raises BadInput when two cells are the same repetition of a load by the same configuration, measured under
    other circumstances (another version, another share of memory): one run has one of each.
    """
    chosen: dict[str, Run] = {}
    places: dict[tuple[str, str, str, int], str] = {}
    for part in parts:
        verdicts = dict(zip(part.serving["cell"], part.serving["verdict"], strict=True))
        for record in part.manifest.cells:
            place = record.system, record.config, record.name, record.repetition
            if places.setdefault(place, record.cell) != record.cell:
                raise BadInput(
                    f"{record.system}:{record.config}, {record.name}, repetition {record.repetition} was "
                    f"measured twice under different circumstances, the second time in {part.manifest.run}"
                )
            taken = chosen.get(record.cell)
            if taken is None or (verdicts[record.cell] == "VALID" and not _is_valid(taken, record.cell)):
                chosen[record.cell] = part
    return chosen


def _is_valid(part: Run, cell: str) -> bool:
    rows = part.serving
    return bool((rows[rows["cell"] == cell]["verdict"] == "VALID").all())


def _first_session(manifest: Manifest) -> Session:
    return Session(**{name: getattr(manifest, name) for name in Session.model_fields})


def _summed(check: ReferenceCheck, rows: Sequence[CorrectnessRow]) -> ReferenceCheck:
    """The first run's check with the sums over the rows of all runs."""
    found = agreement(rows)
    return check.model_copy(
        update={
            "prompts": found.prompts,
            "identical": found.identical,
            "identical_share": found.identical_share,
            "forced_agreement": found.forced_share,
        }
    )
