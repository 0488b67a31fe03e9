"""Runs on disk.

A run is written into results/v1/.<run>.partial/: schedules, then a folder for each finished cell (its
cell.json last) and what else was found so far (started.json), then the joined tables, then manifest.json with
"complete": true, and only then the folder gets its final name results/v1/<run>. Each file is written under a
temporary name, flushed to the disk, and renamed. So whatever kills a run, at any point, leaves a .partial
folder and never something that looks like a result. The next process that runs under the same name goes on
with it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd
from pydantic import ValidationError

from harness.schema import (
    SCHEMA_VERSION,
    TABLES,
    CellRecord,
    CorrectnessRow,
    EventRow,
    GpuSampleRow,
    Manifest,
    ReceivedRow,
    Record,
    RequestRow,
    ServingRow,
    Started,
    StoredFile,
)
from harness.tables import R, compress, decompress, frame_to_csv, read_frame, read_records, records_to_csv

MANIFEST = "manifest.json"
LOGS = "logs"
CELLS = "cells"
STARTED = "started.json"
RAW_TABLES: tuple[tuple[str, type[Record]], ...] = (
    ("requests.csv.gz", RequestRow),
    ("events.csv.gz", EventRow),
    ("gpu_samples.csv.gz", GpuSampleRow),
    ("received.csv.gz", ReceivedRow),
)


class StoreError(Exception):
    """Writing or reading results failed; the message names the file and why."""


class RunExists(StoreError):
    """A run, complete or not, already has that name."""


class IncompleteRun(StoreError):
    """The folder is what a killed or running run left: no manifest that says complete."""


class DamagedRun(StoreError):
    """The run was complete once, but a file is missing, changed, or unreadable."""


def sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _explained(path: Path, action: str) -> Iterator[None]:
    """OSError as a StoreError that says what was being done to which path."""
    try:
        yield
    except OSError as error:
        hint = {
            errno.ENOSPC: ": free some space and run again",
            errno.EFBIG: ": the size limit is in the way",
        }
        raise StoreError(
            f"cannot {action} {path}: {error.strerror or error}{hint.get(error.errno, '')}"
        ) from error


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: bytes) -> None:
    """`content` under its final name, whole or not at all. Raises StoreError."""
    temporary = path.with_name(f".{path.name}.tmp")
    with _explained(path, "write"):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


def partial_path(results: Path, run: str) -> Path:
    """Where a run lies until it is complete."""
    return results / f".{run}.partial"


def check_name_is_free(results: Path, run: str) -> None:
    """Raises StoreError for a name that is no plain folder name, RunExists for that of a complete run."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", run):
        raise StoreError(
            f"run name {run!r}: letters, digits, '.', '_' and '-' only, at most 100, a letter or digit first"
        )
    if (results / run).exists():
        raise RunExists(f"{results / run} exists already: choose another name with --run, or remove it")


class RunWriter:
    """The only writer of a run's folder, which is locked as long as it lives.

    A folder that a killed process left is taken over: `started` is what it noted, `cells` are the records of
    the cells it finished, in the order of their positions. Both are empty in a new run.
    """

    def __init__(self, results: Path, run: str) -> None:
        """Makes or takes over the partial folder.

        Raises RunExists when the run is complete or another process writes it, StoreError when the place
        cannot be written or what is there cannot be read.
        """
        check_name_is_free(results, run)
        self.run = run
        self.final = results / run
        self.folder = partial_path(results, run)
        with _explained(self.folder, "make"):
            self.logs.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise RunExists(f"{self.folder} is being written by another process") from None
        if (self.folder / MANIFEST).exists():
            self._give_name()
            self.close()
            raise RunExists(f"{self.final} was complete but for its name, and has it now")
        self.started = self._read_started()
        self.cells = {record.cell: record for record in self._finished_cells()}

    @property
    def logs(self) -> Path:
        return self.folder / LOGS

    def close(self) -> None:
        """Lets another process go on with the run."""
        os.close(self._lock)

    def write(self, name: str, content: bytes) -> None:
        """A file of the run; a name ending in .gz is compressed."""
        write_atomically(self.folder / name, compress(name, content))

    def note(self, started: Started) -> None:
        """What another process would need to go on."""
        self.started = started
        self.write(STARTED, started.model_dump_json(indent=1).encode())

    def add_cell(self, record: CellRecord, frames: Mapping[str, pd.DataFrame]) -> None:
        """Raw rows of a finished cell, a frame for each of RAW_TABLES; its record comes last."""
        for name, row in RAW_TABLES:
            self.write(f"{CELLS}/{record.cell}/{name}", frame_to_csv(row, frames[name]))
        self.write(f"{CELLS}/{record.cell}/cell.json", record.model_dump_json(indent=1).encode())
        self.cells[record.cell] = record

    def frames(self, cell: str) -> dict[str, pd.DataFrame]:
        """The raw rows of a finished cell, read back."""
        return {
            name: read_frame(row, decompress(name, (self.folder / CELLS / cell / name).read_bytes()))
            for name, row in RAW_TABLES
        }

    def finish(self, manifest: Manifest, serving: list[ServingRow]) -> Path:
        """Joins the cells, writes the manifest, and gives the folder its final name, which is returned.

        `manifest` comes without files and logs, and with complete = False.
        """
        self.write("serving.csv", records_to_csv(ServingRow, serving))
        for name, row in RAW_TABLES:
            self.write(name, self._joined([record.cell for record in manifest.cells], name, row))
        manifest = manifest.model_copy(
            update={"files": self._listed(logs=False), "logs": self._listed(logs=True), "complete": True}
        )
        lost = self.cells.keys() - {record.cell for record in manifest.cells}
        if lost:
            raise StoreError(
                f"{self.folder}: finished cells {', '.join(sorted(lost))} are not part of the run"
            )
        self.write(MANIFEST, manifest.model_dump_json(indent=1).encode() + b"\n")
        return self._give_name()

    def _give_name(self) -> Path:
        """The last steps of a run whose manifest says complete. After a kill they are done again."""
        with _explained(self.final, "rename the run to"):
            if (self.folder / CELLS).exists():
                shutil.rmtree(self.folder / CELLS)
            (self.folder / STARTED).unlink(missing_ok=True)
            self.folder.rename(self.final)
            _sync_folder(self.final.parent)
        return self.final

    def _read_started(self) -> Started | None:
        path = self.folder / STARTED
        if not path.exists():
            return None
        try:
            return Started.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise StoreError(f"{path} cannot be read, so the run cannot go on: {error}") from error

    def _finished_cells(self) -> list[CellRecord]:
        """The cells whose record was written; what else lies in a cell's folder is overwritten."""
        paths = (self.folder / CELLS).glob("*/cell.json")
        try:
            records = [CellRecord.model_validate_json(path.read_bytes()) for path in paths]
        except (OSError, ValidationError) as error:
            raise StoreError(f"a cell in {self.folder / CELLS} cannot be read: {error}") from error
        return sorted(records, key=lambda record: record.position)

    def _joined(self, cells: list[str], name: str, row: type[Record]) -> bytes:
        joined = [records_to_csv(row, [])]
        for cell in cells:
            content = decompress(name, (self.folder / CELLS / cell / name).read_bytes())
            joined.append(content.partition(b"\n")[2])
        return b"".join(joined)

    def _listed(self, logs: bool) -> list[StoredFile]:
        with _explained(self.folder, "read back"):
            return [
                stored for stored in _stored_files(self.folder) if stored.path.startswith(f"{LOGS}/") == logs
            ]


def _stored_files(folder: Path) -> list[StoredFile]:
    """Files that stay in the run, by name."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return [
        StoredFile(path=name, sha256=file_sha256(folder / name), bytes=(folder / name).stat().st_size)
        for name in names
        if name not in (MANIFEST, STARTED) and not name.startswith(f"{CELLS}/")
    ]


@dataclass(frozen=True)
class Run:
    """A complete run whose checksums were right when it was loaded. Tables are read when asked for."""

    path: Path
    manifest: Manifest

    def table(self, name: str) -> pd.DataFrame:
        """A table by its file name (a key of schema.TABLES). Raises DamagedRun when it cannot be read."""
        try:
            return read_frame(TABLES[name], self.table_bytes(name))
        except (ValueError, OSError, EOFError, zlib.error) as error:
            raise DamagedRun(f"{self.path / name}: {error}") from error

    def table_bytes(self, name: str) -> bytes:
        """The table's CSV, uncompressed."""
        return decompress(name, (self.path / name).read_bytes())

    def records(self, row: type[R]) -> list[R]:
        """A small table as declared records; empty when the run has no such table. Raises DamagedRun."""
        name = next(name for name, declared in TABLES.items() if declared is row)
        if not (self.path / name).exists():
            return []
        try:
            return read_records(row, self.table_bytes(name))
        except ValueError as error:
            raise DamagedRun(f"{self.path / name}: {error}") from error

    @cached_property
    def serving(self) -> pd.DataFrame:
        return self.table("serving.csv")

    @cached_property
    def requests(self) -> pd.DataFrame:
        return self.table("requests.csv.gz")

    @cached_property
    def events(self) -> pd.DataFrame:
        return self.table("events.csv.gz")

    @cached_property
    def received(self) -> pd.DataFrame:
        return self.table("received.csv.gz")

    @cached_property
    def gpu_samples(self) -> pd.DataFrame:
        return self.table("gpu_samples.csv.gz")

    @cached_property
    def correctness(self) -> pd.DataFrame:
        """Empty when the stage checked none."""
        if (self.path / "correctness.csv").exists():
            return self.table("correctness.csv")
        return read_frame(CorrectnessRow, records_to_csv(CorrectnessRow, []))


def read_manifest(path: Path) -> Manifest:
    """Manifest of a complete run. Raises IncompleteRun, DamagedRun, or StoreError for no such folder."""
    if not path.is_dir():
        raise StoreError(f"no run at {path}")
    if path.name.endswith(".partial"):
        raise IncompleteRun(f"{path} is incomplete: it was killed, or is still running")
    if not (path / MANIFEST).exists():
        raise IncompleteRun(f"{path} has no {MANIFEST}: it is no complete run")
    with _explained(path / MANIFEST, "read"):
        text = (path / MANIFEST).read_bytes()
    try:
        version = json.loads(text)["schema_version"]
        if version != SCHEMA_VERSION:
            raise DamagedRun(
                f"{path / MANIFEST} has schema version {version}, this code reads {SCHEMA_VERSION}"
            )
        manifest = Manifest.model_validate_json(text)
    except (ValueError, ValidationError, KeyError, TypeError) as error:
        raise DamagedRun(f"{path / MANIFEST} is not a manifest: {error}") from error
    if not manifest.complete:
        raise IncompleteRun(f"{path} is incomplete: its manifest does not say complete")
    return manifest


def damage(path: Path, manifest: Manifest) -> list[str]:
    """What is wrong with the files of a run against its manifest, a line each. Logs may be absent."""
    found = []
    for stored in [*manifest.files, *manifest.logs]:
        file = path / stored.path
        if not file.is_file():
            if stored in manifest.files:
                found.append(f"{stored.path}: missing")
        elif file_sha256(file) != stored.sha256:
            found.append(f"{stored.path}: SHA-256 is not the one in {MANIFEST}")
    known = {stored.path for stored in [*manifest.files, *manifest.logs]} | {MANIFEST}
    names = sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())
    found += [f"{name}: not listed in {MANIFEST}" for name in names if name not in known]
    return found


def load_run(path: Path) -> Run:
    """A run, only if it is complete and every checksum matches. Raises IncompleteRun or DamagedRun."""
    manifest = read_manifest(path)
    found = damage(path, manifest)
    if found:
        raise DamagedRun(f"{path} is damaged: {'; '.join(found)}")
    return Run(path, manifest)


@dataclass(frozen=True)
class RunState:
    """A line of the list of runs."""

    run: str
    stage: str
    created_at: str
    state: str
    path: Path


def list_runs(results: Path) -> list[RunState]:
    """Every run under `results`, complete, damaged, or incomplete, by name."""
    if not results.is_dir():
        return []
    return sorted((_state(path) for path in results.iterdir() if path.is_dir()), key=lambda run: run.run)


def _state(path: Path) -> RunState:
    try:
        manifest = read_manifest(path)
    except IncompleteRun:
        return _incomplete_state(path)
    except StoreError as error:
        return RunState(path.name, "", "", f"damaged: {error}", path)
    found = damage(path, manifest)
    state = f"damaged: {'; '.join(found)}" if found else "complete"
    return RunState(manifest.run, manifest.stage, manifest.created_at, state, path)


def _incomplete_state(path: Path) -> RunState:
    name = path.name.removeprefix(".").removesuffix(".partial")
    try:
        started = Started.model_validate_json((path / STARTED).read_bytes())
        return RunState(name, started.stage, started.sessions[0].created_at, "incomplete", path)
    except (OSError, ValidationError):
        return RunState(name, "", "", f"no {MANIFEST}", path)
