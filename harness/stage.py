"""Stage files: what is measured, declared in TOML under harness/stages before anything runs."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from harness.errors import BadInput
from harness.store import sha256_of
from harness.verdict import Limits

STAGES = Path(__file__).with_name("stages")

TokenRange = tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]]


class Declared(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SloLimits(Declared):
    """Limits of a good request."""

    ttft_ms: float | None = Field(None, gt=0)
    tpot_ms: float | None = Field(None, gt=0)


class CellPlan(Declared):
    """One load that every system of the stage plays, from one schedule file."""

    name: str
    load: Literal["closed", "poisson"]
    concurrency: int | None = Field(None, ge=1)
    requests: int | None = Field(None, ge=1)
    rate_rps: float | None = Field(None, gt=0)
    max_tokens: TokenRange
    ramp_s: float = Field(ge=0)
    window_s: float = Field(gt=0)

    @model_validator(mode="after")
    def _belongs_to_load(self) -> CellPlan:
        closed = self.load == "closed"
        for name, wanted in (("concurrency", closed), ("requests", closed), ("rate_rps", not closed)):
            if (getattr(self, name) is not None) != wanted:
                raise ValueError(f"load {self.load!r} {'needs' if wanted else 'takes no'} {name}")
        return self

    @property
    def play_s(self) -> float:
        """Time in which requests are sent."""
        return self.ramp_s + self.window_s


class WarmupPlan(Declared):
    """Requests played before the first cell of a server, with prompts that no cell has."""

    requests: int = Field(ge=1)
    concurrency: int = Field(ge=1)
    max_tokens: TokenRange


class CorrectnessPlan(Declared):
    """Comparison of greedy output with transformers in fp32, and the least agreement that is expected.

    `dtype` is the number format of the systems. Their teacher-forced agreement is measured where a limit for
    it is declared.
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


class DevicePlan(Declared):
    """What a stage does on one kind of device. `systems` are NAME or NAME:CONFIGURATION, in their order.

    Cells need client_workers, limits and warmup; a stage without cells has correctness alone.
    """

    systems: tuple[str, ...] = Field(min_length=1)
    dtype: Literal["float32", "bfloat16"]
    client_workers: int | None = Field(None, ge=1)
    request_timeout_s: float = Field(60, gt=0)
    limits: Limits | None = None
    slo: SloLimits = SloLimits()
    warmup: WarmupPlan | None = None
    correctness: CorrectnessPlan | None = None
    ceiling: CeilingPlan | None = None
    cells: tuple[CellPlan, ...] = ()

    @model_validator(mode="after")
    def _measures_something(self) -> DevicePlan:
        if not self.cells and self.correctness is None:
            raise ValueError("neither cells nor correctness: nothing to measure")
        if self.cells or self.ceiling:
            missing = [name for name in ("client_workers", "limits", "warmup") if getattr(self, name) is None]
            if missing:
                raise ValueError(f"cells need {', '.join(missing)}")
        return self


class StageFile(Declared):
    description: str
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
