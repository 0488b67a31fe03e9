import gzip
import json
import os
import resource

import pandas as pd
import pytest

from harness import store
from harness.rows import serving_row
from harness.schema import SCHEMA_VERSION, CellRecord, CorrectnessRow, Environment, Manifest, ServingRow
from harness.store import (
    DamagedRun,
    IncompleteRun,
    RunExists,
    RunWriter,
    StoreError,
    list_runs,
    load_run,
    write_atomically,
)
from harness.verify import verify
from tests.harness.made import cell_record, identity, started, steady, tables


def manifest(cells: list[CellRecord]) -> Manifest:
    known = identity()
    return Manifest(
        schema_version=SCHEMA_VERSION,
        run=known.run,
        stage="smoke",
        stage_sha256="b" * 64,
        created_at="2026-01-01T00:00:00Z",
        finished_at="2026-01-01T00:01:00Z",
        command=["run", "smoke"],
        source=known.source,
        box=known.box,
        hardware=known.hardware,
        environments={
            "project": Environment(
                python="{checkout}/.venv/bin/python",
                import_paths=[],
                given=False,
                python_version="3.11",
                packages={},
            )
        },
        servers=[],
        model=known.model,
        schedules=[],
        client_ceiling=None,
        reference_check=None,
        cells=cells,
        files=[],
        logs=[],
        complete=False,
    )


def written_run(results, cells=("c0", "c1")):
    """A complete run of steady cells."""
    writer = RunWriter(results, "r1")
    writer.note(started())
    (writer.logs / "engine.log").write_text("hello\n")
    records, rows = [], []
    for position, name in enumerate(cells):
        record = cell_record(cell=name, position=position)
        made = tables(steady(130 + position), name)
        writer.add_cell(record, made.frames())
        records.append(record)
        rows.append(serving_row(identity(), record, made))
    path = writer.finish(manifest(records), rows)
    writer.close()
    return path


def test_a_finished_run_loads_with_all_its_rows(tmp_path):
    path = written_run(tmp_path)
    run = load_run(path)
    assert path == tmp_path / "r1"
    assert run.manifest.complete
    assert run.serving["verdict"].tolist() == ["VALID", "VALID"]
    assert run.serving["output_tokens_per_s"].tolist() == [50, 50]
    assert run.requests.groupby("cell").size().to_dict() == {"c0": 130, "c1": 131}
    assert len(run.events) == 5 * 261
    assert len(run.correctness) == 0
    assert run.records(ServingRow)[0].ttft_ms_p50 == 20
    assert run.records(CorrectnessRow) == []
    assert sorted(file.name for file in path.iterdir()) == [
        "events.csv.gz", "gpu_samples.csv.gz", "logs", "manifest.json", "received.csv.gz", "requests.csv.gz",
        "serving.csv",
    ]  # fmt: skip
    assert verify(path) == []
    assert [(state.run, state.state) for state in list_runs(tmp_path)] == [("r1", "complete")]


def test_equal_runs_have_equal_bytes(tmp_path):
    first, second = written_run(tmp_path / "a"), written_run(tmp_path / "b")
    for file in first.rglob("*.*"):
        assert file.read_bytes() == (second / file.relative_to(first)).read_bytes()


@pytest.mark.parametrize(
    "last", ["started.json", "cells/c0/requests.csv.gz", "cells/c0/cell.json", "serving.csv"]
)
def test_a_run_that_ends_anywhere_before_its_manifest_is_incomplete(tmp_path, monkeypatch, last):
    def write_until(path, content):
        write_atomically(path, content)
        if path.as_posix().endswith(last):
            raise KeyboardInterrupt

    monkeypatch.setattr(store, "write_atomically", write_until)
    with pytest.raises(KeyboardInterrupt):
        written_run(tmp_path, ["c0"])
    partial = tmp_path / ".r1.partial"
    assert not (tmp_path / "r1").exists()
    with pytest.raises(IncompleteRun, match="killed, or is still running"):
        load_run(partial)
    assert [(state.run, state.stage, state.state) for state in list_runs(tmp_path)] == [
        ("r1", "smoke", "incomplete")
    ]


def test_even_a_whole_manifest_does_not_make_a_partial_folder_a_run(tmp_path):
    path = written_run(tmp_path)
    path.rename(tmp_path / ".r1.partial")
    with pytest.raises(IncompleteRun):
        load_run(tmp_path / ".r1.partial")


def test_a_manifest_that_does_not_say_complete_is_no_run(tmp_path):
    path = written_run(tmp_path)
    content = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(content | {"complete": False}))
    with pytest.raises(IncompleteRun, match="does not say complete"):
        load_run(path)


@pytest.mark.parametrize("name", ["requests.csv.gz", "serving.csv", "logs/engine.log"])
def test_a_changed_file_is_damage(tmp_path, name):
    path = written_run(tmp_path)
    content = bytearray((path / name).read_bytes())
    content[len(content) // 2] ^= 1
    (path / name).write_bytes(content)
    with pytest.raises(DamagedRun, match=f"{name}: SHA-256"):
        load_run(path)
    assert any(line.startswith(f"{name}: SHA-256") for line in verify(path))
    assert list_runs(tmp_path)[0].state.startswith("damaged")


def test_a_missing_table_is_damage_a_missing_log_is_not(tmp_path):
    path = written_run(tmp_path)
    (path / "logs" / "engine.log").unlink()
    load_run(path)
    (path / "events.csv.gz").unlink()
    with pytest.raises(DamagedRun, match=r"events.csv.gz: missing"):
        load_run(path)


def test_a_file_that_is_not_listed_is_damage(tmp_path):
    path = written_run(tmp_path)
    (path / "extra.csv").write_text("x")
    assert verify(path) == ["extra.csv: not listed in manifest.json"]


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"schema_version": 99}'])
def test_a_broken_manifest_is_damage(tmp_path, text):
    path = written_run(tmp_path)
    (path / "manifest.json").write_text(text)
    with pytest.raises(DamagedRun, match=r"manifest\.json"):
        load_run(path)


def test_verify_names_every_value_that_raw_rows_do_not_give(tmp_path):
    path = written_run(tmp_path)
    text = (path / "serving.csv").read_text()
    (path / "serving.csv").write_text(text.replace(",VALID,,100,0,", ",VALID,,101,0,", 1))
    different = verify(path)
    assert different == [
        "serving.csv: SHA-256 is not the one in manifest.json",
        "serving.csv, cell c0: requests is '101', raw rows give '100'",
    ]


def change_table(path, name, old, new):
    """Raw rows changed together with their checksum."""
    rows = gzip.decompress((path / name).read_bytes())
    assert old in rows
    (path / name).write_bytes(gzip.compress(rows.replace(old, new, 1), mtime=0))
    content = json.loads((path / "manifest.json").read_text())
    for stored in content["files"]:
        if stored["path"] == name:
            stored["sha256"] = store.file_sha256(path / name)
    (path / "manifest.json").write_text(json.dumps(content))
    load_run(path)


def test_verify_notices_received_tokens_that_were_changed(tmp_path):
    path = written_run(tmp_path)
    change_table(path, "received.csv.gz", b"\nc1,5020,1,1,1\n", b"\nc1,5020,1,1,3\n")
    found = verify(path)
    assert {line.split(": ")[1].split(" is ")[0] for line in found[:3]} == {
        "output_tokens", "output_tokens_per_s", "events_per_token",
    }  # fmt: skip
    assert found[3:] == ["received.csv.gz, cell c1: is not what events.csv.gz gives"]


def test_verify_notices_events_that_were_changed(tmp_path):
    path = written_run(tmp_path)
    change_table(path, "events.csv.gz", b"\nc1,50,20000,1\n", b"\nc1,50,20000,3\n")
    assert verify(path) == [
        "received.csv.gz, cell c1: is not what events.csv.gz gives",
        "events.csv.gz, cell c1: tokens of 1 request are not its output_tokens",
    ]


def test_verify_notices_events_that_are_missing(tmp_path):
    path = written_run(tmp_path)
    change_table(path, "events.csv.gz", b"\nc1,50,20000,1\n", b"\n")
    assert [line.partition(": ")[0] for line in verify(path)] == [
        "received.csv.gz, cell c1",
        "events.csv.gz, cell c1",
    ]


def test_a_run_killed_before_its_name_gets_it_from_the_next_process(tmp_path):
    path = written_run(tmp_path)
    whole = {file.relative_to(path): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    path.rename(tmp_path / ".r1.partial")
    (tmp_path / ".r1.partial" / "cells" / "c0").mkdir(parents=True)
    with pytest.raises(RunExists, match="was complete but for its name, and has it now"):
        RunWriter(tmp_path, "r1")
    assert verify(path) == []
    assert {file.relative_to(path): file.read_bytes() for file in path.rglob("*") if file.is_file()} == whole


def test_a_finished_cell_is_never_left_out(tmp_path):
    writer = RunWriter(tmp_path, "r1")
    writer.note(started())
    for name in ("c0", "c1"):
        writer.add_cell(cell_record(cell=name), tables(steady(130), name).frames())
    with pytest.raises(StoreError, match="finished cells c1 are not part of the run"):
        writer.finish(manifest([cell_record(cell="c0")]), [])


def test_a_name_is_taken_once(tmp_path):
    written_run(tmp_path)
    with pytest.raises(RunExists, match="choose another name"):
        RunWriter(tmp_path, "r1")


def test_a_partial_run_has_one_writer_and_then_the_next(tmp_path):
    first = RunWriter(tmp_path, "r2")
    assert first.started is None and first.cells == {}
    first.note(started())
    first.add_cell(cell_record(cell="c0"), tables(steady(130)).frames())
    (first.folder / "cells" / "c1").mkdir()
    (first.folder / "cells" / "c1" / "requests.csv.gz").write_bytes(b"cut sho")
    with pytest.raises(RunExists, match="being written by another process"):
        RunWriter(tmp_path, "r2")
    first.close()
    second = RunWriter(tmp_path, "r2")
    assert second.started == started()
    assert second.cells == {"c0": cell_record(cell="c0")}
    for name, frame in tables(steady(130)).frames().items():
        pd.testing.assert_frame_equal(second.frames("c0")[name], frame)


def test_a_partial_run_that_cannot_be_read_is_not_gone_on_with(tmp_path):
    writer = RunWriter(tmp_path, "r2")
    writer.note(started())
    writer.close()
    (writer.folder / "started.json").write_text("{")
    with pytest.raises(StoreError, match=r"started\.json cannot be read"):
        RunWriter(tmp_path, "r2")


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "x" * 101, "a b"])
def test_a_run_name_is_a_plain_folder_name(tmp_path, name):
    with pytest.raises(StoreError, match="run name"):
        RunWriter(tmp_path, name)


def test_a_place_that_is_no_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot make .*file/\.r1\.partial: Not a directory"):
        RunWriter(tmp_path / "file", "r1")


def test_a_full_disk_leaves_no_file_and_no_run(tmp_path):
    writer = RunWriter(tmp_path, "r1")
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            writer.write("big.csv", b"x" * 10_000)
        except StoreError as error:
            os._exit(0 if "big.csv" in str(error) and "too large" in str(error) else 3)
        except BaseException:
            os._exit(4)
        os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sorted(file.name for file in writer.folder.iterdir()) == ["logs"]
    assert [state.run for state in list_runs(tmp_path)] == ["r1"]


def test_no_space_left_is_said_with_what_to_do(tmp_path, monkeypatch):
    def no_space(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(StoreError, match=r"cannot write .*a\.txt: No space left on device: free some space"):
        write_atomically(tmp_path / "a.txt", b"x")
    assert list(tmp_path.iterdir()) == []
