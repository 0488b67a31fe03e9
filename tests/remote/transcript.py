"""A whole campaign on the fake provider, as a user sees it.

`python -m tests.remote.transcript > docs/campaign.md` writes it anew. Its boxes are ssh
servers on this machine, the code and the stage are the real ones. Takes some minutes.
"""

from __future__ import annotations

import getpass
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.remote.fake_vast import KEY
from tests.remote.rented import ROOT, street

SETTINGS = f"""\
gpu = "RTX 4090"
image = "vendor/image:1"
disk_gb = 73
max_dollars_per_hour = 1.0
hours = 3
dollars = 5
stages = ["smoke"]
systems = []
flags = ["--env", "project={sys.executable}"]
user = "{getpass.getuser()}"
"""
HEAD = """\
# A campaign, from offers to results

Written by `python -m tests.remote.transcript > docs/campaign.md`: real commands, and what they print. The
provider is the fake of the tests, which talks as Vast.ai does. Its box is an ssh server on the same machine,
without a GPU, and takes the Python environment of that machine, so nothing is set up and the prices mean
nothing. The stage is the real `run_stage.sh smoke`.

`night.toml`:

```toml
"""
COMMANDS = (
    ("fab", "--list"),
    ("fab", "offers", "--settings", "night.toml"),
    ("fab", "campaign", "--settings", "night.toml", "--run", "night", "--results", "results", "--dry-run"),
    ("fab", "campaign", "--settings", "night.toml", "--run", "night", "--results", "results"),
    ("fab", "status"),
    ("fab", "reap"),
    ("python", "-m", "harness", "report", "results/night-smoke"),
)


def transcript(folder: Path) -> str:
    """Raises RuntimeError when a command fails."""
    (folder / "night.toml").write_text(SETTINGS)
    (folder / "results").mkdir()
    parts = [HEAD, SETTINGS, "```\n"]
    with street(folder / "street") as there:
        environment = os.environ | {
            "VAST_URL": there.fake.url,
            "VAST_API_KEY": KEY,
            "LLM_LADDER_STATE": str(folder / "state"),
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "110",
        }
        for command in COMMANDS:
            parts.append(f"\n```\n$ {' '.join(command)}\n{said(command, folder, environment)}```\n")
    return plain("".join(parts), folder)


def said(command: tuple[str, ...], folder: Path, environment: dict[str, str]) -> str:
    program = [str(Path(sys.executable).parent / command[0]), *command[1:]]
    if command[0] == "fab":
        program[1:1] = ["--search-root", str(ROOT / "remote")]
    done = subprocess.run(
        program, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=-1, stderr=-2, text=True
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: status {done.returncode}: {done.stdout}")
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.rstrip().splitlines())


def plain(text: str, folder: Path) -> str:
    """Without what is of this machine only: its folders, ports and names."""
    home = re.escape(str(folder / "street")) + r"/\d+/home"
    for pattern, stands in (
        (re.escape(sys.executable), ".venv/bin/python"),
        (home, "~"),
        (re.escape(str(folder)) + "/?", ""),
        (re.escape(str(ROOT)) + "/?", ""),
        (r"127\.0\.0\.1:\d+", "127.0.0.1:PORT"),
        (rf"push {re.escape(ROOT.name)} to", "push llm-ladder to"),
    ):
        text = re.sub(pattern, stands, text)
    return text


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        print(transcript(Path(made).resolve()), end="")
