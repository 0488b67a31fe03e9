"""What a system is to the harness: how its server is started, and in which configurations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from harness.schema import Environment, Source

Dtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Target:
    """What a server is to serve. `model_dir` is a HuggingFace folder, the same files for every system."""

    model_name: str
    model_dir: Path
    device: Literal["cpu", "cuda"]
    dtype: Dtype
    max_model_len: int


@dataclass(frozen=True)
class Configuration:
    """A named set of flags, with the reason for them and what they mean for the prefix cache."""

    reason: str
    flags: tuple[str, ...] = ()
    prefix_cache: Literal["on", "off", "unknown"] = "unknown"


@dataclass(frozen=True)
class System:
    """One system. `command(target, port)` gives the arguments behind the interpreter's name.

    `runs_in_checkout`: the server is code of this repository and starts in its root.
    """

    name: str
    environment: str
    devices: frozenset[str]
    configurations: Mapping[str, Configuration]
    command: Callable[[Target, int], list[str]]
    version: Callable[[Environment, Source], str]
    variables: Mapping[str, str] = field(default_factory=dict)
    ready_limit_s: float = 400.0
    usual_startup_s: float = 10.0
    runs_in_checkout: bool = False


def package_version(package: str) -> Callable[[Environment, Source], str]:
    """A System.version that reads the installed package."""
    return lambda environment, _source: environment.packages.get(package, "unknown")


def project_version(environment: Environment, source: Source) -> str:
    """Version of code of this repository: its commit, marked when there are changes on top."""
    return source.git_commit[:12] + ("+dirty" if source.dirty else "")
