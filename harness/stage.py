"""Stage files: what is measured, declared in TOML under harness/stages before anything runs."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from harness.errors import BadInput
from harness.schema import RECEIVED_BIN_MS
from harness.store import sha256_of
from harness.verdict import Limits
from harness.workload.declared import (
    ClosedLoad,
    DrawnLengths,
    EnglishPrompts,
    Lengths,
    Load,
    PoissonLoad,
    Prompts,
    TokenIdPrompts,
    TracePrompts,
)
from harness.workload.lengths import shortest

STAGES = Path(__file__).with_name("stages")

Seconds = Annotated[float, Field(ge=0, multiple_of=RECEIVED_BIN_MS / 1000)]
"""Edges of windows lie on the grid in which received events are counted."""


class Declared(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SloLimits(Declared):
    """Limits of a good request."""

    ttft_ms: float | None = Field(None, gt=0)
    tpot_ms: float | None = Field(None, gt=0)


class CellPlan(Declared):
    """One load that every system of the stage plays. Each repetition has a schedule file of its own."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")
    load: Load
    prompts: Prompts = EnglishPrompts()
    output: Lengths
    ramp_s: Seconds
    window_s: Annotated[Seconds, Field(gt=0)]

    @property
    def play_s(self) -> float:
        """Time in which requests are sent."""
        return self.ramp_s + self.window_s

    @property
    def is_closed(self) -> bool:
        return isinstance(self.load, ClosedLoad)

    @property
    def shares_prefixes(self) -> bool:
        """Prompts begin as others do, on purpose."""
        if isinstance(self.prompts, TracePrompts):
            return self.prompts.trace not in ("azure_code", "azure_conv")  # lengths alone, no blocks
        return self.prompts.kind in ("prefix_groups", "conversations")


class SearchPlan(Declared):
    """Search for the highest Poisson rate that a system keeps up with, by bisection over a geometric grid.

    A system keeps up with a rate when `target_attainment` of the requests are good in each repetition.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")
    low_rps: float = Field(gt=0)
    high_rps: float = Field(gt=0)
    ratio: float = Field(1.1, gt=1)
    repetitions: int = Field(2, ge=1)
    target_attainment: float = Field(0.99, gt=0, le=1)
    prompts: Prompts = EnglishPrompts()
    output: Lengths
    ramp_s: Seconds
    window_s: Annotated[Seconds, Field(gt=0)]

    @model_validator(mode="after")
    def _is_a_range(self) -> SearchPlan:
        if self.high_rps <= self.low_rps:
            raise ValueError(f"high_rps {self.high_rps:g} must be above low_rps {self.low_rps:g}")
        return self

    def cell_at(self, rate_rps: float) -> CellPlan:
        """The cell that tries a rate."""
        return CellPlan(
            name=f"{self.name}-{rate_rps:g}rps",
            load=PoissonLoad(shape="poisson", rate_rps=rate_rps),
            prompts=self.prompts,
            output=self.output,
            ramp_s=self.ramp_s,
            window_s=self.window_s,
        )


class WarmupPlan(Declared):
    """Requests played on each server before its first cell, with prompts that no cell has.

    Rounds are played until one is not faster than the one before by more than a tenth: compilation and caches
    of kernels are then quiet. At most `max_rounds`.
    """

    requests: int = Field(ge=1)
    concurrency: int = Field(ge=1)
    prompts: Prompts = EnglishPrompts()
    output: Lengths
    max_rounds: int = Field(3, ge=1)


class CorrectnessPlan(Declared):
    """Comparison of greedy output with transformers in fp32, and the least agreement that is expected.

    `dtype` is the number format of the systems. Their teacher-forced agreement is measured where a limit for
    it is declared. The limits hold for each system: one that agrees less has INVALID cells.
    """

    prompts: int = Field(ge=1)
    max_tokens: int = Field(ge=1)
    systems: tuple[str, ...]
    dtype: Literal["float32", "bfloat16"] = "float32"
    min_identical: float = Field(1.0, gt=0, le=1)
    min_forced_agreement: float | None = Field(None, gt=0, le=1)


class CeilingPlan(Declared):
    """Measurement of the load generator against the null server."""

    concurrency: int = Field(ge=1)
    seconds: float = Field(gt=0)


class ProfilePlan(Declared):
    """Steps of the engine under closed loops in this process, timed first and then traced.

    Each load keeps `concurrency` requests in flight. `warm_steps` come before what is measured, so that
    compilation is over and requests are of all ages.
    """

    concurrencies: tuple[Annotated[int, Field(ge=1)], ...] = Field(min_length=1)
    prompts: TokenIdPrompts
    output: DrawnLengths
    warm_steps: int = Field(ge=1)
    timed_steps: int = Field(ge=1)
    traced_steps: int = Field(ge=1)

    def cell_at(self, concurrency: int) -> CellPlan:
        """The load with as many requests as the steps can use up: a step gives each in flight one token."""
        steps = self.warm_steps + max(self.timed_steps, self.traced_steps)
        requests = concurrency * (1 + -(-steps // shortest(self.output)))
        return CellPlan(
            name=f"closed-c{concurrency}",
            load=ClosedLoad(concurrency=concurrency, requests=requests),
            prompts=self.prompts,
            output=self.output,
            ramp_s=0,
            window_s=1,  # of steps, not of seconds: never read
        )


class DevicePlan(Declared):
    """What a stage does on one kind of device. `systems` are NAME or NAME:CONFIGURATION, in their order.

    Cells and searches need client_workers, limits and warmup; a stage without them has correctness alone.
    With `residents` all systems stay up for the whole run, those not measured frozen: the numbers are the
    shares of the GPU's memory, by NAME:CONFIGURATION or NAME. Without it one server runs at a time.
    """

    systems: tuple[str, ...] = Field(min_length=1)
    dtype: Literal["float32", "bfloat16"]
    client_workers: int | None = Field(None, ge=1)
    request_timeout_s: float = Field(60, gt=0)
    repetitions: int = Field(1, ge=1)
    residents: dict[str, Annotated[float, Field(gt=0, lt=1)]] | None = None
    limits: Limits | None = None
    slo: SloLimits = SloLimits()
    warmup: WarmupPlan | None = None
    correctness: CorrectnessPlan | None = None
    ceiling: CeilingPlan | None = None
    cells: tuple[CellPlan, ...] = ()
    searches: tuple[SearchPlan, ...] = ()
    profile: ProfilePlan | None = None

    @model_validator(mode="after")
    def _is_coherent(self) -> DevicePlan:
        measures = bool(self.cells or self.searches)
        if not measures and self.correctness is None and self.profile is None:
            raise ValueError("neither cells, searches nor correctness: nothing to measure")
        if self.profile is not None and (measures or self.correctness is not None):
            raise ValueError("a profile has a stage of its own: neither cells, searches nor correctness")
        if measures or self.ceiling:
            missing = [name for name in ("client_workers", "limits", "warmup") if getattr(self, name) is None]
            if missing:
                raise ValueError(f"cells and searches need {', '.join(missing)}")
        names = [part.name for part in (*self.cells, *self.searches)]
        if doubled := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two cells or searches are called {', '.join(doubled)}")
        if self.residents is not None:
            if absent := [label for label in self.systems if self.memory_share(label) is None]:
                raise ValueError(f"residents has no memory share for {', '.join(absent)}")
            if (total := sum(self.memory_share(label) for label in self.systems)) > 1:
                raise ValueError(f"memory shares of residents add up to {total:g}, more than 1")
        return self

    def memory_share(self, label: str) -> float | None:
        """Share of the GPU's memory of a resident NAME:CONFIGURATION: declared for it, or for its NAME."""
        if self.residents is None:
            return None
        return self.residents.get(label, self.residents.get(label.partition(":")[0]))

    def of_systems(self, systems: tuple[str, ...]) -> DevicePlan:
        """The same with other systems. They are resident where memory shares are declared for all of them."""
        if not systems:
            return self
        shares = [self.memory_share(label) for label in systems]
        fits = None not in shares and sum(shares) <= 1
        checks = self.correctness is not None and set(systems) & set(self.correctness.systems)
        return self.model_copy(
            update={
                "systems": systems,
                "residents": self.residents if fits else None,
                "correctness": self.correctness if checks else None,
            }
        )


class StageFile(Declared):
    """`apart`: not one of those that `run_stage.sh all` measures."""

    description: str
    apart: bool = False
    model: str
    max_model_len: int = Field(ge=2)
    seed: int
    cpu: DevicePlan | None = None
    cuda: DevicePlan | None = None


@dataclass(frozen=True)
class Stage:
    """A stage file with the name it goes by and the hash of its bytes."""

    name: str
    sha256: str
    declared: StageFile

    def on(self, device: str) -> DevicePlan:
        """Its part for a device. Raises BadInput when it has none."""
        plan: DevicePlan | None = getattr(self.declared, device)
        if plan is None:
            raise BadInput(f"stage {self.name} has no part for {device}")
        return plan


def stage_names() -> list[str]:
    return sorted(path.stem for path in STAGES.glob("*.toml"))


def stages_of_all(device: str) -> list[str]:
    """Names of the stages that are measured together, and have a part for the device."""
    stages = [load_stage(name) for name in stage_names()]
    return [
        stage.name
        for stage in stages
        if not stage.declared.apart and getattr(stage.declared, device) is not None
    ]


def load_stage(name: str) -> Stage:
    """A stage by its name, or by the path of a .toml file. Raises BadInput for an unknown or wrong one."""
    path = Path(name) if name.endswith(".toml") else STAGES / f"{name}.toml"
    if not path.is_file():
        raise BadInput(f"unknown stage {name!r}; there are: {', '.join(stage_names())}")
    content = path.read_bytes()
    try:
        declared = StageFile.model_validate(tomllib.loads(content.decode()))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{path}: {where}: {first['msg']}") from error
    except ValueError as error:
        raise BadInput(f"{path}: {error}") from error
    return Stage(path.stem, sha256_of(content), declared)
