"""What a run in progress notes besides its cells, so that another process can go on with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.check import Checker
from harness.errors import BadInput
from harness.progress import say
from harness.provenance import anonymous
from harness.schema import ClientCeiling, KneeSearch, ServerLaunch, Session, Started
from harness.store import RunWriter
from harness.survey import RunOptions, Survey


class Notes:
    """The notes of a run, on disk after every change. This process is the last of their sessions."""

    def __init__(self, writer: RunWriter, options: RunOptions, survey: Survey) -> None:
        """Notes that this process goes on with the run. Raises BadInput when it may not: what the finished
        cells depend on is no longer the same."""
        self._writer = writer
        identity = survey.identity
        systems = [chosen.label for chosen in survey.systems]
        begun = writer.started or Started(
            run=identity.run,
            stage=options.stage.name,
            stage_sha256=options.stage.sha256,
            device=options.device,
            model=identity.model,
            sessions=[],
            servers=[],
            correctness=[],
            systems=systems,
            agrees={},
        )
        session = Session(
            created_at=survey.created_at,
            command=[anonymous(argument, options.root) for argument in options.command],
            source=identity.source,
            box=identity.box,
            hardware=identity.hardware,
            environments=survey.environments,
            client_ceiling=None,
        )
        for name, then, now in (
            ("stage file", begun.stage_sha256, options.stage.sha256),
            ("device", begun.device, options.device),
            ("model", begun.model, identity.model),
            ("set of systems", begun.systems, systems),
            *(("code", _code(part), _code(session)) for part in begun.sessions[:1]),
        ):
            if then != now:
                raise BadInput(
                    f"run {begun.run} was begun with another {name}: choose another name with --run"
                )
        if begun.sessions:
            say(f"going on with {writer.folder}: {len(writer.cells)} cells are finished")
        writer.note(begun.model_copy(update={"sessions": [*begun.sessions, session]}))

    @property
    def started(self) -> Started:
        """All that is noted."""
        assert self._writer.started is not None  # since __init__
        return self._writer.started

    @property
    def session(self) -> int:
        """Number of this process's session."""
        return len(self.started.sessions) - 1

    @property
    def ceiling(self) -> ClientCeiling | None:
        """The client's, as this process measured it."""
        return self.started.sessions[-1].client_ceiling

    def add_launch(self, launched: ServerLaunch) -> None:
        self._change(servers=[*self.started.servers, launched])

    def set_plan(self, searches: Sequence[KneeSearch], planned_cells: int) -> None:
        self._change(searches=list(searches), planned_cells=planned_cells)

    def set_checks(self, checker: Checker) -> None:
        self._change(
            correctness=list(checker.rows), agrees=dict(checker.agrees), reference_check=checker.summary()
        )

    def set_ceiling(self, ceiling: ClientCeiling) -> None:
        *earlier, own = self.started.sessions
        self._change(sessions=[*earlier, own.model_copy(update={"client_ceiling": ceiling})])

    def _change(self, **update: Any) -> None:
        self._writer.note(self.started.model_copy(update=update))


def _code(part: Session) -> tuple[str, bool, str | None, str]:
    source = part.source
    return source.git_commit, source.dirty, source.diff_sha256, source.lock_sha256
