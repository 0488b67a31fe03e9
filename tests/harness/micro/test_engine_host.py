"""The benchmark of the engine's host path: what it writes, and that its stand-in keeps the engine going."""

import csv
from pathlib import Path

from harness.micro.engine_host import PARTS, HostPath, main


def test_each_part_of_each_batch_has_a_row(tmp_path: Path) -> None:
    main(["--batches", "1", "3", "--steps", "4", "--repetitions", "2", "--out", str(tmp_path)])
    with (tmp_path / "engine_host.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["batch"], row["part"]) for row in rows] == [
        (batch, part) for batch in "13" for part in (*PARTS, "step")
    ]
    assert all(0 < float(row["us_per_step"]) < 1e6 for row in rows)
    assert {row["steps"] for row in rows} == {"4"}
    assert all("CPU" in row["machine"] and row["git_commit"] for row in rows)


def test_requests_end_and_have_successors() -> None:
    path = HostPath(4)
    for _ in range(150):
        path.step()
        path._scheduler.check()
    assert next(path._ids) > 6
    assert len(path._scheduler._requests) == 4
