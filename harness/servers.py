"""The servers of a run: which are up, which of them runs, and how each was started."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from harness.gpu import RELEASE_LIMIT_S, free_memory_share, processes_on, used_memory_bytes
from harness.plan import ChosenSystem
from harness.progress import phase, say
from harness.provenance import anonymous
from harness.schema import ServerLaunch
from harness.stage import DevicePlan
from harness.survey import RunOptions, Survey
from harness.systems.base import Dtype, ServerError, Target
from harness.systems.memory import is_back
from harness.systems.process import (
    POLL_INTERVAL_S,
    RunningServer,
    already_running,
    launch,
    running,
)


class Servers:
    """Starts what the survey found. `on_launch` gets the record of each start, whether or not the server got
    ready."""

    def __init__(
        self,
        options: RunOptions,
        survey: Survey,
        run_folder: Path,
        launched_before: int,
        on_launch: Callable[[ServerLaunch], None],
    ) -> None:
        self._options = options
        self._survey = survey
        self._run_folder = run_folder
        self._launched = launched_before
        self._on_launch = on_launch

    def version(self, chosen: ChosenSystem) -> str:
        return chosen.system.version(
            self._survey.environments[chosen.interpreter.name], self._survey.source.source
        )

    @contextmanager
    def up(
        self, chosen: ChosenSystem, dtype: Dtype, purpose: str, memory_share: float | None = None
    ) -> Iterator[RunningServer]:
        """The system's server for the length of the block; `memory_share` of the GPU's memory is its own.

        Raises ServerError, see process.running.
        """
        options, model = self._options, self._survey.model
        if chosen.system.url is not None:
            yield already_running(chosen.system.url, model.info.name)
            return
        target = Target(
            model.info.name, model.folder, options.device, dtype, options.stage.declared.max_model_len
        )
        gpu = self._survey.gpu
        memory = None
        if memory_share is not None and gpu.gpus:
            memory = (memory_share, free_memory_share(gpu.nvml, gpu.gpus))
        made = launch(chosen.system, chosen.configuration, target, chosen.interpreter, options.root, memory)
        self._launched += 1
        log = f"logs/{self._launched:02}-{chosen.label.replace(':', '-')}-{dtype}.log"
        used_before = used_memory_bytes(gpu.nvml, gpu.gpus)
        with ExitStack() as stack:
            stack.callback(self._await_memory, chosen.label, used_before)
            startup_s = None
            try:
                with phase(f"{chosen.label}: start, {dtype}") as advance:
                    server = stack.enter_context(running(made, self._run_folder / log, advance))
                startup_s = server.startup_s
            finally:
                self._on_launch(
                    ServerLaunch(
                        system=chosen.system.name,
                        config=chosen.config_name,
                        version=self.version(chosen),
                        purpose=purpose,
                        argv=[self._shown(argument) for argument in made.argv],
                        environment={name: self._shown(value) for name, value in made.additions.items()},
                        startup_s=startup_s,
                        log=log,
                        reason=chosen.configuration.reason,
                        reasons=chosen.configuration.reasons,
                        dtype=dtype,
                        max_model_len=target.max_model_len,
                        memory_share=memory_share,
                        prefix_cache=chosen.configuration.prefix_cache,
                    )
                )
            yield replace(server, model=chosen.system.served_name(target))

    def gpu_processes(self) -> set[str]:
        """Whoever is on the GPUs now."""
        return set(processes_on(self._survey.gpu.nvml, self._survey.gpu.gpus))

    def _await_memory(self, label: str, used_before: list[int]) -> None:
        """Waits until a server that ended has given its GPU memory back: the next looks at what is free."""
        gpu = self._survey.gpu
        deadline = time.monotonic() + RELEASE_LIMIT_S
        while True:
            used = used_memory_bytes(gpu.nvml, gpu.gpus)
            if all(is_back(before, now) for before, now in zip(used_before, used, strict=True)):
                return
            if time.monotonic() > deadline:
                kept = max(now - before for before, now in zip(used_before, used, strict=True))
                say(f"{label}: {kept >> 20} MiB of GPU memory are still in use after its end")
                return
            time.sleep(POLL_INTERVAL_S)

    def _shown(self, text: str) -> str:
        return anonymous(text, self._options.root, self._survey.model.folder)


class Fleet:
    """The servers of the timed cells: one at a time, or, where the plan makes them residents, all of them up
    and those whose turn it is not frozen.

    with Fleet(servers, plan, on_start) as fleet:
        server = fleet.turn_to(chosen)       # runs, and runs alone

    `on_start(chosen, server)` is called once for each server when it is ready, before its first turn. A
    server that does not start or goes away is not tried again: each further turn raises the same
    ServerError. `processes`: what came onto the GPU with the servers, as gpu.processes_on names it.
    """

    def __init__(
        self,
        servers: Servers,
        plan: DevicePlan,
        on_start: Callable[[ChosenSystem, RunningServer], None],
    ) -> None:
        self._servers = servers
        self._plan = plan
        self._resident = plan.residents is not None
        self._on_start = on_start
        self._up: dict[str, tuple[ExitStack, RunningServer]] = {}
        self._lost: dict[str, str] = {}
        self.processes: set[str] = set()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        for label in list(self._up):
            self._stop(label)

    @property
    def residents(self) -> list[str]:
        """Labels of the servers that stay in memory; empty when one runs at a time."""
        return sorted(self._up) if self._resident else []

    def start(self, systems: Sequence[ChosenSystem]) -> None:
        """All of them up, when they are to be resident: the memory of each is taken before the first cell."""
        if not self._resident:
            return
        for chosen in systems:
            try:
                self.turn_to(chosen)
            except ServerError:
                continue  # its turns say so

    def turn_to(self, chosen: ChosenSystem) -> RunningServer:
        """The system's server, and no other at work. Raises ServerError."""
        if chosen.label in self._lost:
            raise ServerError(self._lost[chosen.label])
        for label in list(self._up):
            if label != chosen.label:
                try:
                    self._rest(label)
                except ServerError as error:
                    self._lose(label, str(error))
        try:
            if chosen.label not in self._up:
                self._start(chosen)
            server = self._up[chosen.label][1]
            server.thaw()
            server.check()
        except ServerError as error:
            self._lose(chosen.label, str(error))
            raise
        return server

    def check(self, chosen: ChosenSystem) -> None:
        """Raises ServerError when the server has ended meanwhile."""
        try:
            self._up[chosen.label][1].check()
        except ServerError as error:
            self._lose(chosen.label, str(error))
            raise

    def _start(self, chosen: ChosenSystem) -> None:
        stack = ExitStack()
        share = self._plan.memory_share(chosen.label)
        before = self._servers.gpu_processes()
        server = stack.enter_context(self._servers.up(chosen, self._plan.dtype, "timed cells", share))
        self.processes |= self._servers.gpu_processes() - before
        self._up[chosen.label] = (stack, server)
        self._on_start(chosen, server)

    def _rest(self, label: str) -> None:
        if self._resident:
            self._up[label][1].freeze()
        else:
            self._stop(label)

    def _lose(self, label: str, reason: str) -> None:
        self._lost[label] = reason
        if label in self._up:
            self._stop(label)

    def _stop(self, label: str) -> None:
        stack, server = self._up.pop(label)
        server.thaw()
        try:
            stack.close()
        except ServerError as error:
            self._lost.setdefault(label, str(error))
