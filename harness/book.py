"""The schedule files of a run: each frozen before it is first played, found again when a run goes on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.errors import BadInput
from harness.schema import ScheduleInfo
from harness.store import StoreError
from harness.workload import schedule as schedules
from harness.workload.schedule import Schedule

SUFFIX = ".jsonl.gz"


@dataclass(frozen=True)
class Frozen:
    """What is known of a schedule: its hash, the mean rate it offers (open loops), how many rows of a trace
    were too long for it, and the mean length of the answers."""

    sha256: str
    rate_rps: float | None
    left_out: int
    mean_tokens: float


class ScheduleBook:
    """Writes schedules into a run's folder under their names; the same name twice is the same schedule."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._frozen: dict[str, Frozen] = {}

    def freeze(self, schedule: Schedule) -> None:
        """Puts the schedule into its file.

        Raises StoreError when it cannot be written, BadInput when an earlier process of the run played
        another schedule of this name.
        """
        path = self.path(schedule.name)
        played = schedules.read(path)[1] if path.exists() else None
        try:
            path.parent.mkdir(exist_ok=True)
            sha256 = schedules.write(schedule, path)
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}") from error
        if played not in (None, sha256):
            raise BadInput(
                f"{path.name} was another schedule when this run was begun ({played[:12]}, now "
                f"{sha256[:12]}): the run cannot go on"
            )
        self._frozen[schedule.name] = Frozen(
            sha256,
            schedule.rate_rps,
            schedule.left_out,
            sum(request.max_tokens for request in schedule.requests) / len(schedule.requests),
        )

    def path(self, name: str) -> Path:
        return self._folder / f"{name}{SUFFIX}"

    def __getitem__(self, name: str) -> Frozen:
        return self._frozen[name]

    def listed(self) -> list[ScheduleInfo]:
        """Every schedule frozen so far."""
        return [_info(self.path(name), frozen.sha256) for name, frozen in self._frozen.items()]


def listed(folder: Path) -> list[ScheduleInfo]:
    """Every schedule in the folder of a run that this process has not frozen."""
    return [_info(path, schedules.read(path)[1]) for path in sorted(folder.glob(f"*{SUFFIX}"))]


def _info(path: Path, sha256: str) -> ScheduleInfo:
    return ScheduleInfo(file=f"{path.parent.name}/{path.name}", sha256=sha256)
