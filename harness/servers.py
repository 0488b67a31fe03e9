"""The servers of a run: started one at a time, each recorded as the manifest shows it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from harness.plan import ChosenSystem
from harness.progress import phase
from harness.provenance import anonymous
from harness.schema import ServerLaunch
from harness.survey import RunOptions, Survey
from harness.systems.base import Dtype, Target
from harness.systems.process import Launch, RunningServer, launch, running


class Servers:
    """Starts what the survey found. `launches` grows with each start, whether or not the server got ready."""

    def __init__(self, options: RunOptions, survey: Survey, run_folder: Path) -> None:
        self.launches: list[ServerLaunch] = []
        self._options = options
        self._survey = survey
        self._run_folder = run_folder

    def version(self, chosen: ChosenSystem) -> str:
        return chosen.system.version(
            self._survey.environments[chosen.interpreter.name], self._survey.source.source
        )

    @contextmanager
    def up(self, chosen: ChosenSystem, dtype: Dtype, purpose: str) -> Iterator[RunningServer]:
        """The system's server for the length of the block. Raises ServerError, see process.running."""
        options, model = self._options, self._survey.model
        target = Target(
            model.info.name, model.folder, options.device, dtype, options.stage.declared.max_model_len
        )
        made = launch(chosen.system, chosen.configuration, target, chosen.interpreter, options.root)
        log = f"logs/{chosen.label.replace(':', '-')}-{dtype}.log"
        with ExitStack() as stack:
            startup_s = None
            try:
                with phase(f"{chosen.label}: start, {dtype}") as advance:
                    server = stack.enter_context(running(made, self._run_folder / log, advance))
                startup_s = server.startup_s
            finally:
                self.launches.append(self._launched(chosen, made, purpose, startup_s, log))
            yield server

    def _launched(
        self, chosen: ChosenSystem, made: Launch, purpose: str, startup_s: float | None, log: str
    ) -> ServerLaunch:
        def shown(text: str) -> str:
            return anonymous(text, self._options.root, self._survey.model.folder)

        return ServerLaunch(
            system=chosen.system.name,
            config=chosen.config_name,
            version=self.version(chosen),
            purpose=purpose,
            argv=[shown(argument) for argument in made.argv],
            environment={name: shown(value) for name, value in made.additions.items()},
            startup_s=startup_s,
            log=log,
        )
