"""`pytest -m gpu --receipt FILE` writes which tests ran on which GPU at which commit, and how they ended."""

import csv
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch
import triton

from harness.source import read_source

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = ("git_commit", "dirty", "gpu", "torch", "triton", "started_at", "test", "result", "seconds")


class Receipt:
    """Collects the outcome of each test; a test that fails in set-up or teardown has failed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._outcomes: dict[str, tuple[str, float]] = {}
        source = read_source(ROOT).source
        self._run = {
            "git_commit": source.git_commit,
            "dirty": source.dirty,
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
            "torch": torch.__version__,
            "triton": triton.__version__,
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome, seconds = self._outcomes.get(report.nodeid, ("passed", 0.0))
        if report.outcome != "passed" and outcome != "failed":
            outcome = report.outcome
        self._outcomes[report.nodeid] = outcome, seconds + report.duration

    def pytest_sessionfinish(self) -> None:
        with self._path.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            for test, (result, seconds) in sorted(self._outcomes.items()):
                writer.writerow(self._run | {"test": test, "result": result, "seconds": f"{seconds:.2f}"})


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--receipt",
        type=Path,
        metavar="FILE",
        help="write a CSV of the tests that ran, the GPU and the commit",
    )


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("--receipt"):
        config.pluginmanager.register(Receipt(path), "receipt")
