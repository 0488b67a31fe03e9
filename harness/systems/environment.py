"""Interpreters: which Python runs which system, with what in front of its import path."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.errors import BadInput

PROJECT = "project"
ENVIRONMENTS = (PROJECT, "vllm", "sglang", "tensorrt_llm")


@dataclass(frozen=True)
class Interpreter:
    """A Python with extra import folders. `given`: named by the user, not made by the setup here."""

    name: str
    python: Path
    import_paths: tuple[Path, ...] = ()
    given: bool = False

    def process_environment(self) -> dict[str, str]:
        """Environment of a process of this interpreter.

        PYTHONPATH holds its own import folders and nothing else: what the harness itself was started with
        would come before the packages of another system's environment. Only the harness's own interpreter
        keeps it.
        """
        variables = dict(os.environ)
        if self.import_paths:
            variables["PYTHONPATH"] = os.pathsep.join(map(str, self.import_paths))
        elif self.python != Path(sys.executable):
            variables.pop("PYTHONPATH", None)
        variables["PATH"] = os.pathsep.join([str(self.python.parent), variables.get("PATH", os.defpath)])
        return variables


def parse_environment(text: str) -> Interpreter:
    """NAME=PYTHON[:IMPORT_PATH…] as given with --env. Raises BadInput with what is wrong."""
    name, equals, value = text.partition("=")
    if not equals or name not in ENVIRONMENTS:
        raise BadInput(
            f"--env {text!r}: must be NAME=PYTHON[:IMPORT_PATH…] with NAME one of {', '.join(ENVIRONMENTS)}"
        )
    python, *import_paths = [Path(part) for part in value.split(os.pathsep)]
    if not (python.is_file() and os.access(python, os.X_OK)):
        raise BadInput(f"--env {name}: {python} is not an executable file")
    for path in import_paths:
        if not path.is_dir():
            raise BadInput(f"--env {name}: import path {path} is not a folder")
    return Interpreter(name, python.absolute(), tuple(path.absolute() for path in import_paths), given=True)


def find_environments(given: Iterable[str], root: Path) -> dict[str, Interpreter]:
    """The interpreters there are, by name: those given, else .venv-NAME of the checkout.

    `project` is the interpreter that runs the harness unless another is given.
    """
    found = {PROJECT: Interpreter(PROJECT, Path(sys.executable))}
    for name in ENVIRONMENTS:
        python = root / f".venv-{name}" / "bin" / "python"
        if name != PROJECT and python.is_file():
            found[name] = Interpreter(name, python)
    return found | {interpreter.name: interpreter for interpreter in map(parse_environment, given)}
