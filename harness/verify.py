"""Does a run still say what its raw rows say?"""

from __future__ import annotations

from pathlib import Path

from harness.agreement import agreement
from harness.rows import RunIdentity, of_cell, serving_row
from harness.schema import CorrectnessRow, ServingRow, column_names
from harness.store import MANIFEST, DamagedRun, Run, damage, read_manifest
from harness.tables import read_text_rows, records_to_csv


def verify(path: Path) -> list[str]:
    """Every checksum, every value of serving.csv recomputed from raw rows, and the sums of the correctness
    check; a line for each difference.

    Raises IncompleteRun, or DamagedRun for a manifest that cannot be read.
    """
    manifest = read_manifest(path)
    found = damage(path, manifest)
    try:
        run = Run(path, manifest)
        return found + _differing_values(run) + _differing_check(run)
    except DamagedRun as error:
        return [*found, str(error)]


def recomputed(run: Run) -> list[ServingRow]:
    """The summary rows of a run, from its raw tables and its manifest alone."""
    identity = RunIdentity.of(run.manifest)
    return [
        serving_row(
            identity,
            cell,
            of_cell(run.requests, cell.cell),
            of_cell(run.events, cell.cell),
            of_cell(run.gpu_samples, cell.cell),
        )
        for cell in run.manifest.cells
    ]


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
        f"serving.csv, cell {right['cell']}: {name} is {left.get(name)!r}, raw rows give {right[name]!r}"
        for left, right in zip(written, computed, strict=True)
        for name in column_names(ServingRow)
        if left.get(name) != right[name]
    ]
