"""From a stage to its cells: which systems play which schedules, in which order, under which address."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.errors import BadInput
from harness.knee import grid
from harness.stage import CellPlan, CorrectnessPlan, DevicePlan, WarmupPlan
from harness.systems import choose
from harness.systems.base import Configuration, System
from harness.systems.environment import Interpreter
from harness.workload import schedule as schedules
from harness.workload.build import build, describe_load, describe_workload
from harness.workload.declared import ClosedLoad
from harness.workload.prompts import load_prompts
from harness.workload.schedule import Schedule

TUNED = "tuned"
REFERENCE_S_PER_TOKEN = {"cpu": 0.1, "cuda": 0.03}
BETWEEN_CELLS_S = 1.5
"""Starting the load generator, draining, and storing a cell."""


@dataclass(frozen=True)
class ChosenSystem:
    """A system of the stage whose environment is there, with the configuration asked for."""

    system: System
    config_name: str
    interpreter: Interpreter

    @property
    def configuration(self) -> Configuration:
        return self.system.configurations[self.config_name]

    @property
    def label(self) -> str:
        return self.system.name if self.config_name == "default" else f"{self.system.name}:{self.config_name}"


@dataclass(frozen=True)
class PlannedCell:
    """A line of the plan: one system plays one repetition of a load."""

    position: int
    chosen: ChosenSystem
    cell: CellPlan
    repetition: int = 0

    @property
    def schedule(self) -> str:
        """Name of the schedule it plays. Repetitions have different prompts: a prefix cache that is still
        warm from the one before must not answer the next."""
        return schedule_name(self.cell, self.repetition)

    @property
    def takes_s(self) -> float:
        """Time of play, and what lies between two cells."""
        return self.cell.play_s + BETWEEN_CELLS_S

    @property
    def block(self) -> tuple[str, int]:
        """What the systems are compared in: one repetition of one load."""
        return self.cell.name, self.repetition


def schedule_name(cell: CellPlan, repetition: int) -> str:
    return f"{cell.name}-r{repetition}"


def present_systems(
    plan: DevicePlan,
    device: str,
    environments: Mapping[str, Interpreter],
    tuned: Mapping[str, Configuration] | None = None,
) -> tuple[list[ChosenSystem], list[str]]:
    """The systems of a plan whose interpreter is there, and the names of those left out because it is not.

    `tuned`: by system, what `tuned` means instead of the pinned configuration. Raises BadInput for an unknown
    system, or one that does not run on the device.
    """
    present, absent = [], []
    for text in plan.systems:
        system, config_name = choose(text)
        if config_name == TUNED and system.name in (tuned or {}):
            system = replace(system, configurations={TUNED: tuned[system.name]})
        if device not in system.devices:
            raise BadInput(
                f"system {system.name} does not run on {device}, only on {', '.join(sorted(system.devices))}"
            )
        if system.environment in environments:
            present.append(ChosenSystem(system, config_name, environments[system.environment]))
        else:
            absent.append(text)
    return present, absent


def planned_cells(plan: DevicePlan, systems: Sequence[ChosenSystem]) -> list[PlannedCell]:
    """Every cell in the order it is played; systems alternate: A B C, then C B A.

    Where servers are resident, each load is played by all systems before the next load, twice in a row
    (A B C C B A, and the next load the other way round: C B A A B C), and pairs of repetitions follow each
    other. Else a server plays all loads of a repetition
    before it makes room for the next system's. Either way a run that is cut has measured all systems alike.
    """
    if plan.residents is not None:
        order = [
            (chosen, cell, repetition)
            for first in range(0, plan.repetitions, 2)
            for place, cell in enumerate(plan.cells)
            for repetition in range(first, min(first + 2, plan.repetitions))
            for chosen in alternating(systems, place + repetition)
        ]
    else:
        order = [
            (chosen, cell, repetition)
            for repetition in range(plan.repetitions)
            for chosen in alternating(systems, repetition)
            for cell in plan.cells
        ]
    return [
        PlannedCell(position, chosen, cell, repetition)
        for position, (chosen, cell, repetition) in enumerate(order)
    ]


def alternating(systems: Sequence[ChosenSystem], turn: int) -> Sequence[ChosenSystem]:
    """Forwards in even turns, backwards in odd ones: what drifts meets all systems alike."""
    return systems if turn % 2 == 0 else systems[::-1]


def comparable_blocks(cells: Sequence[PlannedCell]) -> list[list[PlannedCell]]:
    """The plan in pieces of consecutive cells, as short as may be, of which each has all systems alike."""
    last = {planned.block: place for place, planned in enumerate(cells)}
    blocks: list[list[PlannedCell]] = [[]]
    end = -1
    for place, planned in enumerate(cells):
        end = max(end, last[planned.block])
        blocks[-1].append(planned)
        if place == end and place + 1 < len(cells):
            blocks.append([])
    return [block for block in blocks if block]


@dataclass(frozen=True)
class Step:
    """A line of the estimated timeline. A cell belongs to a block, which is measured whole or not at all:
    `block_ends_s` is when that is over."""

    text: str
    ends_s: float
    block_ends_s: float
    planned: PlannedCell | None = None

    def fits(self, budget_s: float | None) -> bool:
        """Whether it is over within a time from the start of the run."""
        return budget_s is None or self.block_ends_s <= budget_s


def timeline(plan: DevicePlan, device: str, systems: Sequence[ChosenSystem]) -> list[Step]:
    """What a run does and when each step will be over: times of play, usual start-up times, and the
    reference's generation. A search is counted as the bisection of its grid by each system.
    """
    now_s = plan.ceiling.seconds + 2 if plan.ceiling else 0.0
    if plan.correctness is not None:
        tokens = plan.correctness.prompts * plan.correctness.max_tokens
        now_s += 10 + 1.5 * tokens * REFERENCE_S_PER_TOKEN[device]
    steps = []
    resident = plan.residents is not None
    if resident or not plan.cells:
        for chosen in systems:
            now_s += chosen.system.usual_startup_s
            steps.append(Step(f"{chosen.label} up", now_s, now_s))
    serving = None
    for block in comparable_blocks(planned_cells(plan, systems)):
        ends = []
        for planned in block:
            if not resident and planned.chosen is not serving:
                now_s += planned.chosen.system.usual_startup_s
                serving = planned.chosen
            now_s += planned.takes_s
            ends.append(now_s)
        steps += [
            Step(_in_words(planned), end_s, ends[-1], planned)
            for planned, end_s in zip(block, ends, strict=True)
        ]
    for search in plan.searches:
        halvings = math.ceil(math.log2(len(grid(search.low_rps, search.high_rps, search.ratio)) + 1))
        probe_s = search.ramp_s + search.window_s + BETWEEN_CELLS_S
        for chosen in systems:
            now_s += halvings * search.repetitions * probe_s
            rates = f"{search.low_rps:g} to {search.high_rps:g} requests/s"
            text = f"{chosen.label:<20} search {search.name}: {rates}"
            steps.append(Step(text, now_s, now_s))
    return steps


def _in_words(planned: PlannedCell) -> str:
    cell = planned.cell
    load = f"{describe_load(cell.load)}; {describe_workload(cell.prompts, cell.output)}"
    return f"{planned.chosen.label:<20} {planned.schedule:<24} {cell.play_s:g} s: {load}"


def build_cell(cell: CellPlan, repetition: int, seed: int) -> Schedule:
    """The schedule of one repetition. Raises ScheduleError, for a trace that is not here too.

    Each repetition draws anew, so that an interval over repetitions covers the chance in arrivals and
    lengths.
    """
    return build(
        schedule_name(cell, repetition),
        seed + repetition,
        cell.load,
        cell.prompts,
        cell.output,
        duration_s=cell.play_s,
    )


def build_warmup(plan: WarmupPlan, round_number: int, seed: int) -> Schedule:
    """One round of warm-up."""
    load = ClosedLoad(shape="closed", concurrency=plan.concurrency, requests=plan.requests)
    return build(f"warmup-r{round_number}", seed, load, plan.prompts, plan.output, duration_s=None)


def build_correctness(plan: CorrectnessPlan, turn: Callable[[str], str]) -> Schedule:
    """The correctness prompts go through `turn` (see workload.chat): a model tuned for chat ends most bare
    questions at once, and an empty answer proves nothing."""
    texts = [turn(prompt.text) for prompt in load_prompts()]
    return schedules.correctness(texts, count=plan.prompts, max_tokens=plan.max_tokens)


def cell_id(content: Mapping[str, Any]) -> str:
    """Content address of a cell: 16 hex digits of the SHA-256 of its canonical JSON."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
