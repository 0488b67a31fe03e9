"""The correctness check of a run: the reference once, then each system's greedy output against it."""

from __future__ import annotations

import json
from typing import Any

from harness.agreement import agreement, by_system, shortfalls
from harness.book import ScheduleBook
from harness.correctness import ask, compared, end_token_ids, force, not_answered, run_reference
from harness.plan import ChosenSystem
from harness.progress import phase, say
from harness.schema import CorrectnessRow, ReferenceCheck
from harness.servers import Servers
from harness.stage import CorrectnessPlan
from harness.store import RunWriter
from harness.survey import RunOptions, Survey
from harness.systems.base import ServerError
from harness.systems.environment import PROJECT
from harness.systems.process import RunningServer
from harness.workload.schedule import Schedule


class Checker:
    """Asks each system once. `rows` and `agrees` (by label) start with what the run has found before."""

    def __init__(
        self,
        plan: CorrectnessPlan,
        schedule: Schedule,
        survey: Survey,
        rows: list[CorrectnessRow],
        agrees: dict[str, bool],
    ) -> None:
        self.rows = rows
        self.agrees = agrees
        self._plan = plan
        self._schedule = schedule
        self._survey = survey
        self._reference: dict[str, Any] = {}

    def make_reference(self, options: RunOptions, book: ScheduleBook, writer: RunWriter) -> None:
        """The reference's answers: of an earlier process of the run, or now. Raises CorrectnessError."""
        path = writer.logs / "reference.json"
        if path.exists():
            self._reference = json.loads(path.read_bytes())
            return
        with phase("reference: transformers, fp32"):
            self._reference = run_reference(
                options.environments[PROJECT],
                self._survey.model.folder,
                book.path(self._schedule.name),
                writer.logs,
                options.device,
                options.root,
            )

    def is_due(self, chosen: ChosenSystem) -> bool:
        """Whether the system is to be checked and has not been."""
        return chosen.label in self._plan.systems and chosen.label not in self.agrees

    def check(self, chosen: ChosenSystem, server: RunningServer) -> None:
        """Asks a running server."""
        schedule, model = self._schedule, self._survey.model
        with phase(f"{chosen.label}: correctness", total=len(schedule.requests)) as advance:
            answers = ask(server.url, server.model, schedule, advance)
        forced = None
        if self._plan.min_forced_agreement is not None:
            with phase(f"{chosen.label}: teacher forcing", total=len(schedule.requests)) as advance:
                forced = force(server.url, server.model, schedule, self._reference, advance)
        rows = compared(chosen.label, self._reference, answers, end_token_ids(model.folder), forced)
        self.rows += rows
        self.agrees[chosen.label] = not self._less_than_declared(rows)

    def check_separately(self, chosen: ChosenSystem, servers: Servers) -> None:
        """On a server of its own, in the number format declared for the check."""
        try:
            with servers.up(chosen, self._plan.dtype, "correctness") as server:
                self.check(chosen, server)
        except ServerError as error:
            say(f"{chosen.label}: {error}")
            self.note_no_answers(chosen, str(error).splitlines()[0])

    def note_no_answers(self, chosen: ChosenSystem, reason: str) -> None:
        """A system that could not be asked does not agree."""
        self.rows += compared(chosen.label, self._reference, not_answered(self._reference, reason), set())
        self.agrees[chosen.label] = False

    def shortfalls(self) -> list[str]:
        """Where systems agree less than declared, a line each."""
        return [
            f"{system}: {line}"
            for system in by_system(self.rows)
            for line in self._less_than_declared([row for row in self.rows if row.system == system])
        ]

    def _less_than_declared(self, rows: list[CorrectnessRow]) -> list[str]:
        return shortfalls(agreement(rows), self._plan.min_identical, self._plan.min_forced_agreement)

    def summary(self) -> ReferenceCheck:
        """As the manifest shows it."""
        found = agreement(self.rows)
        return ReferenceCheck(
            prompts=found.prompts,
            identical=found.identical,
            max_tokens=self._plan.max_tokens,
            device=self._reference["device"],
            dtype=self._reference["dtype"],
            attention=self._reference["attention"],
            packages=self._reference["packages"],
            wall_s=self._reference["wall_s"],
            system_dtype=self._plan.dtype,
            min_identical=self._plan.min_identical,
            min_forced_agreement=self._plan.min_forced_agreement,
            identical_share=found.identical_share,
            forced_agreement=found.forced_share,
        )
