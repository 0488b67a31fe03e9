"""Which configuration of a system is its fastest: how a run of the stage `tune` chooses the tuned one."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich import box
from rich.table import Table

from harness.errors import BadInput
from harness.looking import RESULTS, run_path
from harness.report import stdout_console
from harness.schema import ServingRow
from harness.store import load_run
from harness.systems import SYSTEMS
from harness.systems.base import Configuration


@dataclass(frozen=True)
class Ranked:
    """A configuration and the geometric mean of its output tokens/s over all loads of the run.

    None, and last, when a cell of it is INVALID: a configuration that fails under one of the loads is no
    choice.
    """

    system: str
    config: str
    tokens_per_s: float | None
    loads: dict[str, float]


def ranking(rows: Sequence[ServingRow]) -> list[Ranked]:
    """Every configuration, system by system, the fastest first.

    The geometric mean gives a ratio between two configurations at one load the same weight whatever the
    load's own level.
    """
    ranked = []
    for system, config in dict.fromkeys((row.system, row.config) for row in rows):
        own = [row for row in rows if (row.system, row.config) == (system, config)]
        speeds = [row.output_tokens_per_s for row in own]
        usable = all(row.verdict == "VALID" for row in own) and min(speeds) > 0
        mean = math.exp(sum(map(math.log, speeds)) / len(speeds)) if usable else None
        ranked.append(Ranked(system, config, mean, {_name(row): row.output_tokens_per_s for row in own}))
    systems = list(dict.fromkeys(each.system for each in ranked))
    return sorted(ranked, key=lambda each: (systems.index(each.system), -(each.tokens_per_s or 0)))


def winner(rows: Sequence[ServingRow], system: str) -> str | None:
    """Name of the system's fastest configuration; None when none has VALID cells alone."""
    best = next((each for each in ranking(rows) if each.system == system), None)
    return best.config if best is not None and best.tokens_per_s is not None else None


def winners(results: Path, runs: Sequence[str]) -> dict[str, Configuration]:
    """By system, the fastest configuration that the runs of the stage `tune` found.

    Raises BadInput when one found none for any system.
    """
    found: dict[str, Configuration] = {}
    for run in runs:
        rows = load_run(results / run).records(ServingRow)
        best = {row.system: winner(rows, row.system) for row in rows}
        chosen = {
            name: replace(SYSTEMS[name].configurations[config], reason=f"{config}, the fastest of run {run}")
            for name, config in best.items()
            if config is not None
        }
        if not chosen:
            raise BadInput(f"run {run} has no system with a configuration whose cells are all VALID")
        found |= chosen
    return found


def _name(row: ServingRow) -> str:
    return f"{row.load_name or row.load} r{row.repetition}"


def register(commands: argparse._SubParsersAction) -> None:
    """Adds `rank` to the commands of the harness."""
    parser = commands.add_parser("rank", help="configurations of each system of a run, the fastest first")
    parser.add_argument("run", help="name of a run, or its folder")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the runs")
    parser.add_argument("--json", action="store_true", help="for programs, on stdout")
    parser.set_defaults(command=_command)


def _command(args: argparse.Namespace, _arguments: list[str]) -> int:
    ranked = ranking(load_run(run_path(args)).records(ServingRow))
    if args.json:
        print(json.dumps([asdict(each) for each in ranked]))
        return 0
    table = Table("system", "configuration", box=box.SIMPLE_HEAD, pad_edge=False)
    loads = list(dict.fromkeys(name for each in ranked for name in each.loads))
    for heading in ("tokens/s, mean", *loads):
        table.add_column(heading, justify="right")
    for each in ranked:
        mean = "INVALID" if each.tokens_per_s is None else f"{each.tokens_per_s:,.0f}"
        table.add_row(each.system, each.config, mean, *(f"{each.loads.get(name, 0):,.0f}" for name in loads))
    stdout_console().print(table)
    return 0
