"""Several runs as one."""

import pytest

from harness.errors import BadInput
from harness.merge import merge
from harness.rows import serving_row
from harness.store import RunWriter, load_run
from harness.verify import verify
from tests.harness.made import cell_record, identity, started, steady, tables
from tests.harness.test_store import manifest


def stored(results, name, *cells):
    """A complete run of cells, each (id, why it failed or None, changes of its record)."""
    writer = RunWriter(results, name)
    writer.note(started())
    records, rows = [], []
    for position, (cell, failure, changes) in enumerate(cells):
        declared = {"name": cell, "position": position, "failure": failure} | changes
        record = cell_record(cell=cell, **declared)
        made = tables(steady(130) if failure is None else [], cell)
        writer.add_cell(record, made.frames())
        records.append(record)
        rows.append(serving_row(identity(), record, made))
    writer.finish(manifest(records).model_copy(update={"run": name}), rows)
    writer.close()


def test_a_valid_cell_is_taken_before_an_invalid_one_whatever_the_order(tmp_path):
    stored(tmp_path, "a", ("c0", None, {}), ("c1", "it did not start", {}))
    stored(tmp_path, "b", ("c1", None, {}), ("c2", None, {}))
    for name, runs in (("ab", ("a", "b")), ("ba", ("b", "a"))):
        path = merge(tmp_path, name, runs)
        found = load_run(path)
        assert verify(path) == []
        assert sorted(found.serving["cell"]) == ["c0", "c1", "c2"]
        assert set(found.serving["verdict"]) == {"VALID"}
        assert found.serving["position"].tolist() == [0, 1, 2]
        assert found.serving.set_index("cell")["session"].to_dict() == {
            cell: runs.index(run) for cell, run in (("c0", "a"), ("c1", "b"), ("c2", "b"))
        }


def test_one_repetition_measured_under_two_circumstances_is_refused(tmp_path):
    stored(tmp_path, "a", ("c0", None, {"name": "closed", "system_version": "old"}))
    stored(tmp_path, "b", ("c9", None, {"name": "closed", "system_version": "new"}))
    with pytest.raises(BadInput, match="engine:default, closed, repetition 0 was measured twice"):
        merge(tmp_path, "ab", ("a", "b"))
    assert not (tmp_path / "ab").exists()
