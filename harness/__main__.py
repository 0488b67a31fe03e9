"""Command line of the harness: `python -m harness COMMAND`.

Exit codes: 0 all is well; 1 a cell is INVALID, output agrees less than declared, or a run is incomplete or
damaged; 2 what was asked cannot be done, and a line on stderr says why; 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from harness.correctness import CorrectnessError
from harness.errors import BadInput
from harness.gpu import open_nvml
from harness.plan import build_schedules, estimated_seconds, planned_cells, present_systems
from harness.report import print_run, run_list
from harness.run import run_stage
from harness.schema import CorrectnessRow, ServingRow, markdown
from harness.source import write_source_file
from harness.stage import load_stage, stage_names
from harness.store import DamagedRun, IncompleteRun, StoreError, list_runs, load_run, write_atomically
from harness.survey import RunOptions
from harness.systems.environment import ENVIRONMENTS, find_environments
from harness.verify import verify
from harness.workload.prompts import PromptError
from harness.workload.schedule import ScheduleError

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "v1"
COLUMNS_BEGIN, COLUMNS_END = "<!-- columns:begin -->", "<!-- columns:end -->"
out = Console(highlight=False)


def main(argv: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    args = _parser().parse_args(arguments)
    try:
        return args.command(args, arguments)
    except KeyboardInterrupt:
        print("interrupted: servers are stopped, nothing counts as a run", file=sys.stderr)
        return 130
    except (IncompleteRun, DamagedRun) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (BadInput, StoreError, ScheduleError, PromptError, CorrectnessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m harness", description="Measure systems, and check what was measured."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="measure a stage and store it")
    _stage_options(run)
    run.add_argument("--results", type=Path, default=RESULTS, help="folder of the runs (default: results/v1)")
    run.add_argument("--run", help="name of the run (default: STAGE-BOX-TIME)")
    run.add_argument("--model", help="named model, HuggingFace folder or .gguf file (default: the stage's)")
    run.add_argument("--box", help="name of this machine in the results (default: made from its hardware)")
    run.set_defaults(command=_run)

    plan = commands.add_parser("plan", help="show what `run` would do, in which order, and how long it takes")
    _stage_options(plan)
    plan.set_defaults(command=_plan)

    for name, command, text in (
        ("verify", _verify, "recompute every summary value from raw rows, and every checksum"),
        ("report", _report, "print the table of a run"),
    ):
        reading = commands.add_parser(name, help=text)
        reading.add_argument("run", help="name of a run, or its folder")
        reading.add_argument("--results", type=Path, default=RESULTS)
        reading.add_argument("--json", action="store_true", help="for programs, on stdout")
        reading.set_defaults(command=command)

    listing = commands.add_parser("list", help="list the runs there are, complete or not")
    listing.add_argument("--results", type=Path, default=RESULTS)
    listing.add_argument("--json", action="store_true", help="for programs, on stdout")
    listing.set_defaults(command=_list)

    columns = commands.add_parser(
        "columns", help="print columns and manifest fields as markdown (RUNBOOK.md holds it)"
    )
    columns.add_argument("--into", type=Path, help="put it between the markers of this file instead")
    columns.set_defaults(command=_columns)
    source = commands.add_parser(
        "source", help="write .source.json, for a box that gets this checkout without git"
    )
    source.set_defaults(command=_source)
    return parser


def _stage_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("stage", help=f"{', '.join(stage_names())}, or a .toml file")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), help="default: cuda where there is an NVIDIA GPU"
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=PYTHON[:IMPORT_PATH…]",
        help=f"interpreter and import folders of {', '.join(ENVIRONMENTS)} (default: .venv-NAME here)",
    )
    parser.add_argument("--json", action="store_true", help="for programs, on stdout")


def _device(args: argparse.Namespace) -> str:
    return args.device or ("cuda" if open_nvml() is not None else "cpu")


def _run(args: argparse.Namespace, arguments: list[str]) -> int:
    outcome = run_stage(
        RunOptions(
            stage=load_stage(args.stage),
            device=_device(args),
            environments=find_environments(args.env, ROOT),
            results=args.results,
            root=ROOT,
            command=arguments,
            model=args.model,
            run=args.run,
            box=args.box,
        )
    )
    _show(args, outcome.path, outcome.serving, outcome.correctness)
    for line in outcome.shortfalls:
        print(f"correctness: {line}", file=sys.stderr)
    return 0 if outcome.valid else 1


def _plan(args: argparse.Namespace, _arguments: list[str]) -> int:
    stage, device = load_stage(args.stage), _device(args)
    plan = stage.on(device)
    systems, absent = present_systems(plan, device, find_environments(args.env, ROOT))
    schedules = build_schedules(stage, plan)
    cells: list[dict[str, Any]] = [
        {
            "position": planned.position,
            "system": planned.chosen.label,
            "cell": planned.cell.name,
            "requests": len(schedules[planned.cell.name].requests),
            "play_s": planned.cell.play_s,
        }
        for planned in planned_cells(plan, systems)
    ]
    seconds = estimated_seconds(plan, device, systems)
    if args.json:
        print(
            json.dumps(
                {
                    "stage": stage.name,
                    "device": device,
                    "cells": cells,
                    "absent": absent,
                    "estimated_s": seconds,
                }
            )
        )
        return 0
    out.print(f"{stage.name} on {device}: {stage.declared.description}", markup=False)
    for cell in cells:
        out.print(
            "{position:>3}  {system:<10} {cell:<20} {play_s:g} s, up to {requests} requests".format(**cell)
        )
    if plan.correctness is not None:
        out.print(f"greedy output of {plan.correctness.prompts} prompts against transformers")
    out.print(f"left out, no environment: {', '.join(absent)}") if absent else None
    out.print(f"about {seconds:.0f} s")
    return 0


def _verify(args: argparse.Namespace, _arguments: list[str]) -> int:
    path = _run_path(args)
    differences = verify(path)
    if args.json:
        print(json.dumps({"run": path.name, "differences": differences}))
    elif differences:
        print("\n".join(differences))
    else:
        print(f"{path.name}: every checksum and every value of serving.csv is what the raw rows say")
    return 1 if differences else 0


def _report(args: argparse.Namespace, _arguments: list[str]) -> int:
    run = load_run(_run_path(args))
    _show(args, run.path, run.records(ServingRow), run.records(CorrectnessRow))
    return 0


def _show(
    args: argparse.Namespace, path: Path, serving: list[ServingRow], correctness: list[CorrectnessRow]
) -> None:
    if args.json:
        tables = {"serving": serving, "correctness": correctness}
        listed = {name: [json.loads(row.model_dump_json()) for row in rows] for name, rows in tables.items()}
        print(json.dumps({"run": path.name, "path": str(path), **listed}))
    else:
        print_run(out, path, serving, correctness)


def _list(args: argparse.Namespace, _arguments: list[str]) -> int:
    states = list_runs(args.results)
    if args.json:
        print(json.dumps([{**vars(state), "path": str(state.path)} for state in states]))
    else:
        out.print(run_list(states))
    return 0


def _columns(args: argparse.Namespace, _arguments: list[str]) -> int:
    if args.into is None:
        print(markdown(), end="")
        return 0
    before, begin, rest = args.into.read_text().partition(COLUMNS_BEGIN)
    _, end, after = rest.partition(COLUMNS_END)
    if not end:
        raise BadInput(f"{args.into} has no {COLUMNS_BEGIN} and {COLUMNS_END}")
    write_atomically(args.into, f"{before}{begin}\n{markdown()}{end}{after}".encode())
    return 0


def _source(_args: argparse.Namespace, _arguments: list[str]) -> int:
    print(write_source_file(ROOT))
    return 0


def _run_path(args: argparse.Namespace) -> Path:
    """A run by its folder, or by its name among complete and incomplete ones. Raises BadInput."""
    for path in (args.results / args.run, args.results / f".{args.run}.partial", Path(args.run)):
        if path.is_dir():
            return path
    known = ", ".join(state.run for state in list_runs(args.results)) or "none yet"
    raise BadInput(f"no run {args.run!r} in {args.results}; there are: {known}")


if __name__ == "__main__":
    # As Ctrl-C does it: the servers are stopped before the harness is gone.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
