"""A copy of the scripts in a folder of its own, on a PATH that holds only known tools and stand-ins.

The stand-in for Python runs `-I` with the real one, plays pip by writing a stand-in for uv, and notes every
other call. The stand-in for uv makes environments whose Python is the same stand-in.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLS = (
    "awk", "basename", "bash", "cat", "chmod", "comm", "cp", "df", "dirname", "env", "find", "flock", "grep",
    "ln", "mkdir", "mv", "rm", "sed", "sleep", "sort", "stat", "touch", "uname",
)  # fmt: skip

PYTHON = r"""#!/bin/bash
case "$1 $2" in
    '-I -c') exec "$REAL_PYTHON" "$@" ;;
    '-m pip')
        [[ "$PIP" != missing ]] || exit 1
        [[ "$3" == install ]] || exit 0
        while [[ "$1" != --target ]]; do shift; done
        mkdir -p "$2/bin" && cp "$STANDINS/uv" "$2/bin/uv"
        [[ "$PIP" != killed ]] || { : >"$2/bin/uv"; kill -9 "$PPID"; exit 137; }
        echo installed uv >>"$CALLS" ;;
    *)
        "$REAL_PYTHON" -I -c 'import json, os, sys
variables = {name: os.environ.get(name) for name in ("PYTHONPATH", "PYTHONHOME")}
print(json.dumps({"argv": sys.argv[1:], "cwd": os.getcwd(), **variables}))' "$0" "$@" >>"$CALLS"
        [[ -z "$ON_CALL" ]] || source "$ON_CALL" ;;
esac
"""
UV = r"""#!/bin/bash
[[ "$1" != --version ]] || { echo "uv ${UV_SAYS:-0.13.9} (stand-in)"; exit; }
[[ " $* " != *' --check '* ]] || { [[ -x "$UV_PROJECT_ENVIRONMENT/bin/python" ]]; exit; }
[[ -z "$UV_FAILS" ]] || { echo "$UV_FAILS" >&2; exit 2; }
mkdir -p "$UV_PROJECT_ENVIRONMENT/bin" && cp "$STANDINS/python" "$UV_PROJECT_ENVIRONMENT/bin/python"
echo "uv $* with $UV_PYTHON" >>"$CALLS"
"""


@dataclass
class Checkout:
    """Calls scripts of `root`; `variables` are added to an otherwise nearly empty environment."""

    root: Path
    path: Path
    variables: dict[str, str] = field(default_factory=dict)

    @classmethod
    def make(cls, folder: Path) -> Checkout:
        root, path, standins = folder / "a checkout", folder / "bin", folder / "stand ins"
        for name in ("remote", ".ci"):
            shutil.copytree(ROOT / name, root / name)
        shutil.copytree(ROOT / "harness" / "stages", root / "harness" / "stages")
        (root / "results" / "v1").mkdir(parents=True)
        path.mkdir()
        for tool in TOOLS:
            (path / tool).symlink_to(Path(str(shutil.which(tool))))
        standins.mkdir()
        made = cls(root, path)
        for name, text in (("python", PYTHON), ("uv", UV)):
            made.write_program(standins / name, text)
        made.variables = {
            "PATH": str(path),
            "LC_ALL": "C",
            "REAL_PYTHON": sys.executable,
            "STANDINS": str(standins),
            "CALLS": str(folder / "calls"),
            "PIP": "works",
            "ON_CALL": "",
        }
        return made

    @staticmethod
    def write_program(file: Path, text: str) -> Path:
        file.write_text(text)
        file.chmod(0o755)
        return file

    def add_python(self, name: str = "python3.11", text: str | None = None) -> Path:
        """A Python on PATH: the stand-in, or a program of this text."""
        text = text or (Path(self.variables["STANDINS"]) / "python").read_text()
        return self.write_program(self.path / name, text)

    def on_call(self, script: str) -> None:
        """What the stand-in for Python does when a stage calls it."""
        file = self.path.parent / "on call"
        file.write_text(script)
        self.variables["ON_CALL"] = str(file)

    def command(self, script: str, *arguments: str) -> list[str]:
        return ["bash", str(self.root / script), *arguments]

    def call(self, script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs a script from another folder, without a terminal."""
        return subprocess.run(
            self.command(script, *arguments),
            env=self.variables | variables,
            cwd=self.path.parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def stage(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return self.call("remote/run_stage.sh", *arguments, **variables)

    @property
    def calls(self) -> list[str]:
        """Lines noted by the stand-ins."""
        file = Path(self.variables["CALLS"])
        return file.read_text().splitlines() if file.exists() else []

    @property
    def python_calls(self) -> list[dict[str, object]]:
        """Calls of the stand-in for Python by stages: argv, cwd, and import variables."""
        return [json.loads(line) for line in self.calls if line.startswith("{")]
