"""What a campaign is to do, from one TOML file: which box, for how much, and which stages on it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from remote import money
from remote.errors import RemoteError
from remote.labels import NAME, NAME_RULE
from remote.providers import ssh, vast
from remote.providers.base import Wanted
from remote.wheelhouse import manifest

ROOT = Path(__file__).resolve().parents[1]
OWN_STAGES = ("test", "figures", "all")  # those of run_stage.sh that are no run of the harness
OWN_FLAGS = ("--run", "--box", "--results")
MOST_HOURS = 720.0  # a month: more is a slip of the pen
WORD = r"^([^\s-]\S*)?$"  # no option of the program it is given to
System = Literal["project", "vllm", "sglang"]


class Settings(BaseModel):
    """One box and its work. GB are 10^9 bytes, dollars are US dollars.

    `gpu`: the exact name at the provider. `hours` that a box may live, `dollars` for all boxes of the run.
    `systems`: environments that setup_gpu_box.sh makes; none: it is not called. `flags` go to every stage.
    `wheelhouses`: folders that remote.wheelhouse has packed, installed before. `key`: private ssh key for a
    box of one's own; a rented box gets one that is made for the run.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    provider: str = vast.NAME
    gpu: str = Field(default="", pattern=r"^(\S+( \S+)*)?$")
    num_gpus: int = Field(default=1, ge=1, le=16, strict=True)
    gpu_ram_gb: float = Field(default=0.0, ge=0, le=10_000, strict=True)
    disk_gb: int = Field(default=100, ge=10, le=100_000, strict=True)
    image: str = Field(default="", pattern=WORD)
    max_dollars_per_hour: float = Field(default=0.0, ge=0, allow_inf_nan=False, strict=True)
    hours: float = Field(gt=0, le=MOST_HOURS, strict=True)
    dollars: float = Field(default=0.0, ge=0, allow_inf_nan=False, strict=True)
    stages: tuple[str, ...] = Field(min_length=1)
    systems: tuple[System, ...] = ("project", "vllm", "sglang")
    flags: tuple[str, ...] = ()
    wheelhouses: tuple[Path, ...] = ()
    exclude_machines: frozenset[str] = frozenset()
    user: str = Field(default="root", min_length=1, pattern=WORD)
    key: Path | None = None

    @field_validator("provider")
    @classmethod
    def _known(cls, value: str) -> str:
        if value != vast.NAME:
            host = value.removeprefix(f"{ssh.NAME}:")
            if host == value:
                raise ValueError(f"unknown provider; there are: {vast.NAME}, {ssh.NAME}:HOST[:PORT]")
            try:
                ssh.parse_address(host)
            except RemoteError as error:
                raise ValueError(str(error)) from error
        return value

    @field_validator("stages", "systems")
    @classmethod
    def _each_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if twice := {name for name in value if value.count(name) > 1}:
            raise ValueError(f"named twice: {', '.join(sorted(twice))}")
        return value

    @field_validator("flags")
    @classmethod
    def _leave_names_alone(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """Results are looked for under the names and in the folder that the campaign gives them."""
        if taken := [flag for flag in value if flag.partition("=")[0] in OWN_FLAGS]:
            raise ValueError(f"{taken[0]} is set by the campaign itself")
        return value

    @model_validator(mode="after")
    def _fits_its_provider(self) -> Settings:
        if self.rented:
            needed = ("gpu", "image", "max_dollars_per_hour", "dollars")
            missing = [name for name in needed if not getattr(self, name)]
            if missing:
                raise ValueError(f"provider {self.provider!r} needs {', '.join(missing)}")
            if self.key is not None:
                raise ValueError("`key` is for a box of one's own: a rented box gets one made for the run")
        elif self.key is None:
            raise ValueError("a box of one's own needs `key`, the private ssh key that it accepts")
        return self

    @property
    def rented(self) -> bool:
        return not self.provider.startswith(f"{ssh.NAME}:")

    @property
    def caps(self) -> money.Caps:
        """A box of one's own costs nothing, so any cap of dollars is kept."""
        return money.Caps(self.hours, self.dollars if self.rented else 1.0)

    @property
    def wanted(self) -> Wanted:
        return Wanted(
            gpu=self.gpu,
            num_gpus=self.num_gpus,
            gpu_ram_gb=self.gpu_ram_gb,
            disk_gb=self.disk_gb,
            max_dollars_per_hour=self.max_dollars_per_hour,
            exclude_machines=self.exclude_machines,
        )


def load(path: Path, checkout: Path = ROOT) -> dict[str, Settings]:
    """Settings by name of box; the only one has the name "".

    What stands at the top of the file is for all boxes, and each table [boxes.NAME] says what is other for
    its box. Paths are meant from the folder of the file. Raises RemoteError for a file that cannot be read,
    an unknown field or value, a key or a wheelhouse that is not there, or a stage that is not in `checkout`.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RemoteError(f"settings {path} cannot be read: {error}") from error
    boxes = content.pop("boxes", {"": {}})
    if not isinstance(boxes, dict) or not boxes or not all(isinstance(own, dict) for own in boxes.values()):
        raise RemoteError(f"settings {path}: boxes must be tables [boxes.NAME]")
    for name in boxes:
        if name and not re.fullmatch(NAME, name):
            raise RemoteError(f"settings {path}: box {name!r}: {NAME_RULE}")
    return {name: _checked(path, name, content | own, checkout) for name, own in boxes.items()}


def of_json(text: str, where: Path) -> Settings:
    """Settings as they were kept for a run. Raises RemoteError."""
    try:
        return Settings.model_validate_json(text)
    except ValidationError as error:
        raise RemoteError(f"settings {where}: {_lines(error)}") from error


def stages_of(checkout: Path) -> tuple[str, ...]:
    measuring = sorted(file.stem for file in (checkout / "harness" / "stages").rglob("*.toml"))
    return (*measuring, *OWN_STAGES)


def check_stage(stage: str, checkout: Path) -> None:
    if stage not in (known := stages_of(checkout)):
        raise RemoteError(f"unknown stage {stage!r}; there are: {', '.join(known)}")


def _checked(path: Path, name: str, fields: Mapping[str, object], checkout: Path) -> Settings:
    where = f"settings {path}" + (f", box {name}" if name else "")
    try:
        settings = Settings.model_validate(fields)
    except ValidationError as error:
        raise RemoteError(f"{where}: {_lines(error)}") from error
    for stage in settings.stages:
        check_stage(stage, checkout)
    return settings.model_copy(update=_files(settings, path.absolute().parent, where))


def _files(settings: Settings, folder: Path, where: str) -> dict[str, object]:
    """Key and wheelhouses by their whole paths. Raises RemoteError: here, before anything costs money."""
    key = folder / settings.key.expanduser() if settings.key else None
    if key is not None and not key.is_file():
        raise RemoteError(f"{where}: key: there is no file {key}")
    houses = tuple(folder / house.expanduser() for house in settings.wheelhouses)
    for house in houses:
        if not (house / manifest.NAME).is_file():
            raise RemoteError(f"{where}: wheelhouses: there is no {manifest.NAME} in {house}")
    return {"key": key, "wheelhouses": houses}


def _lines(error: ValidationError) -> str:
    """Field, what is wrong, and the value, of each fault."""
    said = []
    for fault in error.errors(include_url=False):
        field = ".".join(str(part) for part in fault["loc"])
        value = f" (given: {fault['input']!r})" if field and fault["type"] != "missing" else ""
        said.append(f"{field}: {fault['msg']}{value}" if field else str(fault["msg"]))
    return "; ".join(said)
