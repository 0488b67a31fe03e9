"""What a system is to the harness: how its server is started, and in which configurations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from harness.schema import Environment, Source

Dtype = Literal["float32", "bfloat16"]
PrefixCache = Literal["on", "off", "unknown"]


class ServerError(Exception):
    """A server cannot start, did not come up, or went away; the message says why."""


@dataclass(frozen=True)
class Target:
    """What a server is to serve. `model_dir` is a HuggingFace folder, the same files for every system."""

    model_name: str
    model_dir: Path
    device: Literal["cpu", "cuda"]
    dtype: Dtype
    max_model_len: int


@dataclass(frozen=True)
class Setting:
    """Flags and environment variables that belong together, and the reason for them.

    `entry` is what it needs in place of the `-m MODULE` that the system's command begins with.
    """

    reason: str
    flags: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    entry: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Configuration:
    """A named set of settings: what it is for, and what it means for the prefix cache."""

    reason: str
    settings: tuple[Setting, ...] = ()
    prefix_cache: PrefixCache = "unknown"

    @property
    def flags(self) -> tuple[str, ...]:
        return tuple(flag for setting in self.settings for flag in setting.flags)

    @property
    def variables(self) -> dict[str, str]:
        return {name: value for setting in self.settings for name, value in setting.variables.items()}

    @property
    def entry(self) -> tuple[str, ...] | None:
        return next((setting.entry for setting in self.settings if setting.entry is not None), None)

    @property
    def reasons(self) -> dict[str, str]:
        """The reason for each flag and each variable, by its name."""
        return {
            name: setting.reason
            for setting in self.settings
            for name in (*setting.flags, *setting.variables)
            if name.startswith("--") or name in setting.variables
        }


def no_memory_flags(share: float, free_share: float) -> list[str]:
    """Of a system that sets no GPU memory aside."""
    return []


def name_as_given(target: Target) -> str:
    """Of a system whose command line sets the name that clients use."""
    return target.model_name


@dataclass(frozen=True)
class System:
    """One system. `command(target, port)` gives the arguments behind the interpreter's name, `-m MODULE`
    first.

    `memory_flags(share, free_share)`: flags that give the server `share` of the GPU's whole memory, where
    `free_share` of it is free before the server starts. Raises ServerError when that is too little.
    `counters`: our names, `cached_tokens` and `preemptions`, to samples of the server's /metrics.
    `served_name(target)`: what requests call the model.
    `url`: of a server that already runs; nothing is started then, and openai.served_model names the model.
    `runs_in_checkout`: the server is code of this repository and starts in its root.
    """

    name: str
    environment: str
    devices: frozenset[str]
    configurations: Mapping[str, Configuration]
    command: Callable[[Target, int], list[str]]
    version: Callable[[Environment, Source], str]
    variables: Mapping[str, str] = field(default_factory=dict)
    memory_flags: Callable[[float, float], list[str]] = no_memory_flags
    counters: Mapping[str, str] = field(default_factory=dict)
    served_name: Callable[[Target], str] = name_as_given
    url: str | None = None
    ready_limit_s: float = 400.0
    usual_startup_s: float = 10.0
    runs_in_checkout: bool = False


def package_version(package: str) -> Callable[[Environment, Source], str]:
    """A System.version that reads the installed package."""
    return lambda environment, _source: environment.packages.get(package, "unknown")


def project_version(environment: Environment, source: Source) -> str:
    """Version of code of this repository: its commit, marked when there are changes on top."""
    return source.git_commit[:12] + ("+dirty" if source.dirty else "")
