"""Where the host's time of a step goes: the parts of an engine, timed from outside."""

from collections.abc import Callable
from time import perf_counter_ns
from typing import ParamSpec, TypeVar

from engine.serving.engine import Engine

P = ParamSpec("P")
R = TypeVar("R")

PARTS = ("schedule", "send", "launch", "collect", "process")
"""schedule: choosing the step. send: packing its inputs and queueing their copy, in paged steps. launch: the
rest of queueing it. collect: its results, the wait for the device included. process: applying them."""


class StepTimes:
    """Nanoseconds of the host by part, of one engine from now on. A call costs some 0.2 us more for it."""

    def __init__(self, engine: Engine) -> None:
        self._spent = dict.fromkeys(PARTS, 0)
        scheduler, runner = engine.scheduler, engine.runner
        scheduler.schedule = self._timed("schedule", scheduler.schedule)
        scheduler.process = self._timed("process", scheduler.process)
        runner.launch = self._timed("launch", runner.launch)
        runner.collect = self._timed("collect", runner.collect)
        if runner._paged:
            runner._paged.send = self._timed("send", runner._paged.send)

    def _timed(self, part: str, call: Callable[P, R]) -> Callable[P, R]:
        spent = self._spent

        def timed(*args: P.args, **kwargs: P.kwargs) -> R:
            begin = perf_counter_ns()
            try:
                return call(*args, **kwargs)
            finally:
                spent[part] += perf_counter_ns() - begin

        return timed

    def take(self) -> dict[str, int]:
        """What was spent since the last call, by part."""
        taken = dict(self._spent)
        taken["launch"] -= taken["send"]
        self._spent.update(dict.fromkeys(PARTS, 0))
        return taken
