"""From a stage to its cells: which systems play which schedules, in which order, under which address."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import BadInput
from harness.stage import CellPlan, DevicePlan, Stage
from harness.store import StoreError
from harness.systems import choose
from harness.systems.base import Configuration, System
from harness.systems.environment import Interpreter
from harness.workload import schedule as schedules
from harness.workload.prompts import load_prompts
from harness.workload.schedule import Schedule

WORKLOAD = "english"
REFERENCE_S_PER_TOKEN = {"cpu": 0.1, "cuda": 0.03}


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
    """A line of the plan."""

    position: int
    chosen: ChosenSystem
    cell: CellPlan
    repetition: int = 0


def present_systems(
    plan: DevicePlan, device: str, environments: Mapping[str, Interpreter]
) -> tuple[list[ChosenSystem], list[str]]:
    """The systems of a plan whose interpreter is there, and the names of those left out because it is not.

    Raises BadInput for an unknown system, or one that does not run on the device.
    """
    present, absent = [], []
    for text in plan.systems:
        system, config_name = choose(text)
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
    """Every cell in the order it is played: a server stays up for all of its system's cells."""
    pairs = [(chosen, cell) for chosen in systems for cell in plan.cells]
    return [PlannedCell(position, chosen, cell) for position, (chosen, cell) in enumerate(pairs)]


def estimated_seconds(plan: DevicePlan, device: str, systems: Sequence[ChosenSystem]) -> float:
    """Rough length of the run: times of play, usual start-up times, and the reference's generation."""
    play_s = len(systems) * sum(cell.play_s for cell in plan.cells)
    startup_s = sum(chosen.system.usual_startup_s for chosen in systems)
    correctness_s = 0.0
    if plan.correctness is not None:
        tokens = plan.correctness.prompts * plan.correctness.max_tokens
        correctness_s = 10 + 1.5 * tokens * REFERENCE_S_PER_TOKEN[device]
    return play_s + startup_s + correctness_s + (plan.ceiling.seconds if plan.ceiling else 0)


def build_schedules(stage: Stage, plan: DevicePlan, turn: Callable[[str], str] = str) -> dict[str, Schedule]:
    """Every schedule of a stage by its name: the cells', "warmup", and "correctness".

    The correctness prompts go through `turn` (see workload.chat): a model tuned for chat ends most bare
    questions at once, and an empty answer proves nothing.
    """
    texts = [prompt.text for prompt in load_prompts()]
    seed = stage.declared.seed
    built = {cell.name: _build(cell, texts, seed) for cell in plan.cells}
    if plan.warmup is not None:
        built["warmup"] = schedules.closed_loop(texts, name="warmup", seed=seed, **plan.warmup.model_dump())
    if plan.correctness is not None:
        built["correctness"] = schedules.correctness(
            [turn(text) for text in texts],
            count=plan.correctness.prompts,
            max_tokens=plan.correctness.max_tokens,
        )
    return built


def _build(cell: CellPlan, texts: list[str], seed: int) -> Schedule:
    if cell.concurrency is not None and cell.requests is not None:
        return schedules.closed_loop(
            texts,
            name=cell.name,
            seed=seed,
            concurrency=cell.concurrency,
            requests=cell.requests,
            max_tokens=cell.max_tokens,
        )
    return schedules.poisson(
        texts,
        name=cell.name,
        seed=seed,
        rate_rps=cell.rate_rps,
        duration_s=cell.play_s,
        max_tokens=cell.max_tokens,
    )


def write_schedule(schedule: Schedule, path: Path) -> str:
    """The schedule's file and its SHA-256. Raises StoreError when it cannot be written."""
    try:
        path.parent.mkdir(exist_ok=True)
        return schedules.write(schedule, path)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from error


def cell_id(content: Mapping[str, Any]) -> str:
    """Content address of a cell: 16 hex digits of the SHA-256 of its canonical JSON."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
