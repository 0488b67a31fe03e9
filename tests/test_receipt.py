"""The receipt of a test run: what ran, where, and how it ended."""

import csv
import subprocess
import sys
from pathlib import Path

TESTS = """
import pytest

def test_passes(): pass
def test_fails(): assert False
@pytest.mark.skip
def test_skipped(): pass
@pytest.fixture
def broken():
    yield
    raise RuntimeError
def test_breaks_afterwards(broken): pass
"""
ROOT = Path(__file__).resolve().parents[1]


def test_every_outcome_is_written(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    receipt = tmp_path / "receipt.csv"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.receipt",
        "--receipt",
        str(receipt),
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    with receipt.open() as file:
        rows = list(csv.DictReader(file))
    assert {row["test"].rpartition("::")[2]: row["result"] for row in rows} == {
        "test_passes": "passed",
        "test_fails": "failed",
        "test_skipped": "skipped",
        "test_breaks_afterwards": "failed",
    }
    assert all(row["git_commit"] and row["dirty"] in ("True", "False") and row["gpu"] for row in rows)
