"""Does a run still say what its raw rows say?"""

from __future__ import annotations

from pathlib import Path

from harness.agreement import agreement
from harness.attention.rows import differing_rows
from harness.metrics import received_from_events, succeeded
from harness.profile_summary import differences as profile_differences
from harness.rows import CellTables, RunIdentity, of_cell, serving_row
from harness.schema import CellRecord, CorrectnessRow, KneeRow, ServingRow, column_names
from harness.search import knees
from harness.store import MANIFEST, DamagedRun, Run, damage, read_manifest
from harness.tables import read_text_rows, records_to_csv


def verify(path: Path) -> list[str]:
    """Every checksum, every value of serving.csv, knee.csv, steps.csv and profile.csv recomputed from raw
    rows, the raw tables against each other, the sums of the correctness check; a line for each difference.

    Raises IncompleteRun, or DamagedRun for a manifest that cannot be read.
    """
    manifest = read_manifest(path)
    found = damage(path, manifest)
    try:
        run = Run(path, manifest)
        return [
            *found,
            *_differing_values(run),
            *_differing_events(run),
            *_differing_check(run),
            *_differing_knees(run),
            *profile_differences(run),
            *differing_rows(run),
        ]
    except DamagedRun as error:
        return [*found, str(error)]


def recomputed(run: Run) -> list[ServingRow]:
    """The summary rows of a run, from its raw tables and its manifest alone."""
    return [
        serving_row(RunIdentity.of(run.manifest, cell.session), cell, tables_of(run, cell.cell))
        for cell in run.manifest.cells
    ]


def tables_of(run: Run, cell: str) -> CellTables:
    """The raw tables of one cell. Runs from before received.csv.gz keep every event instead."""
    requests, events = of_cell(run.requests, cell), of_cell(run.events, cell)
    has_received = (run.path / "received.csv.gz").exists()
    return CellTables(
        requests,
        events,
        of_cell(run.received, cell) if has_received else received_from_events(requests, events),
        of_cell(run.gpu_samples, cell),
    )


def _differing_events(run: Run) -> list[str]:
    """Events and tokens of the three raw tables against each other."""
    return [line for cell in run.manifest.cells for line in _disagreements(tables_of(run, cell.cell), cell)]


def _disagreements(tables: CellTables, cell: CellRecord) -> list[str]:
    requests, events, received = tables.requests, tables.events, tables.received
    counted = requests.set_index("request")["events"].astype("int64")
    found = []
    if counted.sum() != received["events"].sum():
        found.append(
            f"received.csv.gz, cell {cell.cell}: {received['events'].sum()} events, "
            f"requests.csv.gz counts {counted.sum()}"
        )
    if cell.events_stride == 1:
        columns = ["t_ms", "events", "tokens"]  # reads within one microsecond look like one there
        if not received_from_events(requests, events)[columns].equals(received[columns]):
            found.append(f"received.csv.gz, cell {cell.cell}: is not what events.csv.gz gives")
    by_request = events.groupby("request")["tokens"].agg(["size", "sum"])
    kept = requests[(requests["request"] % cell.events_stride == 0) & (requests["events"] > 0)]
    if by_request["size"].to_dict() != kept.set_index("request")["events"].to_dict():
        return [
            *found,
            f"events.csv.gz, cell {cell.cell}: does not hold what requests.csv.gz counts, of each request "
            f"whose number is a multiple of {cell.events_stride}",
        ]
    well = kept[succeeded(kept)].set_index("request")["output_tokens"]
    wrong = int((by_request["sum"].reindex(well.index) != well).sum())
    if wrong:
        are = "request are not its" if wrong == 1 else "requests are not their"
        found.append(f"events.csv.gz, cell {cell.cell}: tokens of {wrong} {are} output_tokens")
    return found


def _differing_knees(run: Run) -> list[str]:
    written = run.records(KneeRow)
    computed = knees(run.manifest.searches, run.records(ServingRow))
    return [] if written == computed else [f"knee.csv is {written}, serving.csv gives {computed}"]


def _differing_check(run: Run) -> list[str]:
    """The manifest's sums over correctness.csv against its rows; older runs keep no shares."""
    check = run.manifest.reference_check
    if check is None:
        return []
    found = agreement(run.records(CorrectnessRow))
    sums = {"prompts": found.prompts, "identical": found.identical}
    if check.identical_share is not None:
        sums |= {"identical_share": found.identical_share, "forced_agreement": found.forced_share}
    return [
        f"{MANIFEST}: reference_check.{name} is {getattr(check, name)!r}, correctness.csv gives {value!r}"
        for name, value in sums.items()
        if getattr(check, name) != value
    ]


def _differing_values(run: Run) -> list[str]:
    written = read_text_rows(run.table_bytes("serving.csv"))
    computed = read_text_rows(records_to_csv(ServingRow, recomputed(run)))
    if len(written) != len(computed):
        return [f"serving.csv: {len(written)} rows, the manifest declares {len(computed)} cells"]
    return [
        f"serving.csv, cell {right['cell']}: {name} is {left[name]!r}, raw rows give {right[name]!r}"
        for left, right in zip(written, computed, strict=True)
        for name in column_names(ServingRow)
        if name in left and left[name] != right[name]
    ]
