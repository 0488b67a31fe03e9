"""Command line of the harness: `python -m harness COMMAND`.

Exit codes: 0 all is well; 1 a cell is INVALID, output agrees less than declared, a gate of `compare` is
broken, or a run is incomplete or damaged; 2 what was asked cannot be done, and a line on stderr says why; 130
after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import Any

from harness import compare, looking, rank
from harness.attention import command as attention
from harness.attention.plan import load_attention_stage
from harness.attention.run import STAGE as ATTENTION
from harness.correctness import CorrectnessError
from harness.errors import BadInput
from harness.finish import finish
from harness.gpu import open_nvml
from harness.looking import RESULTS, ROOT, show
from harness.plan import Step, present_systems, timeline
from harness.progress import minutes
from harness.report import stdout_console
from harness.run import run_stage
from harness.stage import DevicePlan, load_stage, stage_names, stages_of_all
from harness.store import DamagedRun, IncompleteRun, StoreError, load_run
from harness.survey import RunOptions
from harness.systems.environment import ENVIRONMENTS, find_environments
from harness.workload.prompts import PromptError
from harness.workload.schedule import ScheduleError

out = stdout_console()


def main(argv: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    args = _parser().parse_args(arguments)
    try:
        return args.command(args, arguments)
    except KeyboardInterrupt:
        print("interrupted: servers are stopped; the same command with --run goes on", file=sys.stderr)
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
    run.add_argument(
        "--run", help="name of the run (default: STAGE-BOX-TIME); one that was killed goes on where it was"
    )
    run.add_argument("--model", help="named model, HuggingFace folder or .gguf file (default: the stage's)")
    run.add_argument("--box", help="name of this machine in the results (default: made from its hardware)")
    run.add_argument(
        "--after", action="append", default=[], metavar="RUN", help="leave out the cells that this run has"
    )
    run.add_argument(
        "--tuned-by",
        action="append",
        default=[],
        metavar="RUN",
        help="let `tuned` be the fastest that this run of the stage tune found, not what is pinned",
    )
    run.set_defaults(command=_run)

    plan = commands.add_parser("plan", help="show what `run` would do, in which order, and how long it takes")
    _stage_options(plan)
    plan.set_defaults(command=_plan)

    stages = commands.add_parser("stages", help="names of the stages that are measured together here")
    stages.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is a GPU")
    stages.set_defaults(command=_stages)

    finishing = commands.add_parser(
        "finish", help="make a complete run of the cells that an incomplete one has, where it cannot go on"
    )
    finishing.add_argument("run", help="its name")
    finishing.add_argument(
        "--results", type=Path, default=RESULTS, help="folder of the runs (default: results/v1)"
    )
    finishing.set_defaults(command=_finish)

    looking.register(commands)
    compare.register(commands)
    rank.register(commands)
    return parser


def _finish(args: argparse.Namespace, _arguments: list[str]) -> int:
    path = finish(args.results, args.run)
    manifest = load_run(path).manifest
    print(f"{path}: {len(manifest.cells)} of {manifest.planned_cells} cells")
    return 0


def _stage_options(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(sorted([*stage_names(), ATTENTION]))
    parser.add_argument("stage", help=f"{names}, or a .toml file")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), help="default: cuda where there is an NVIDIA GPU"
    )
    parser.add_argument(
        "--system",
        action="append",
        default=[],
        metavar="NAME[:CONFIG] | URL",
        help="instead of the stage's systems; the URL of any OpenAI-compatible server that already runs",
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=PYTHON[:IMPORT_PATH…]",
        help=f"interpreter and import folders of {', '.join(ENVIRONMENTS)} (default: .venv-NAME here)",
    )
    parser.add_argument(
        "--budget-s", type=float, help="begin no block of cells that would not be over by then (seconds)"
    )
    parser.add_argument("--json", action="store_true", help="for programs, on stdout")


def _device(args: argparse.Namespace) -> str:
    return args.device or ("cuda" if open_nvml() is not None else "cpu")


def _stages(args: argparse.Namespace, _arguments: list[str]) -> int:
    device = _device(args)
    kernels = [ATTENTION] if getattr(load_attention_stage().declared, device) is not None else []
    print("\n".join(sorted([*stages_of_all(device), *kernels])))
    return 0


def _run(args: argparse.Namespace, arguments: list[str]) -> int:
    if args.stage == ATTENTION:
        return attention.run(args, arguments, _device(args), ROOT, out)
    options = RunOptions(
        stage=load_stage(args.stage),
        device=_device(args),
        environments=find_environments(args.env, ROOT),
        results=args.results,
        root=ROOT,
        command=arguments,
        model=args.model,
        run=args.run,
        box=args.box,
        systems=tuple(args.system),
        budget_s=args.budget_s,
        after=tuple(args.after),
        tuned_by=tuple(args.tuned_by),
    )
    if options.stage.on(options.device).profile is not None:
        from harness.profile import run_profile  # the only stage that needs PyTorch here

        show(args.json, run_profile(options), [], [], [])
        return 0
    outcome = run_stage(options)
    show(args.json, outcome.path, outcome.serving, outcome.correctness, outcome.knees)
    for line in outcome.shortfalls:
        print(f"correctness: {line}", file=sys.stderr)
    return 0 if outcome.valid else 1


def _plan(args: argparse.Namespace, _arguments: list[str]) -> int:
    if args.stage == ATTENTION:
        return attention.plan(args, _device(args), out)
    stage, device = load_stage(args.stage), _device(args)
    plan = stage.on(device).of_systems(tuple(args.system))
    systems, absent = present_systems(plan, device, find_environments(args.env, ROOT))
    steps = timeline(plan, device, systems)
    if args.json:
        print(
            json.dumps(
                {
                    "stage": stage.name,
                    "device": device,
                    "cells": [_as_json(step, args.budget_s) for step in steps],
                    "absent": absent,
                    "estimated_s": steps[-1].ends_s if steps else 0.0,
                }
            )
        )
        return 0
    out.print(f"{stage.name} on {device}: {stage.declared.description}", markup=False)
    for step in steps:
        within = "" if step.fits(args.budget_s) else "   beyond the budget"
        out.print(f"{minutes(step.ends_s):>7}  {step.text}{within}", markup=False, soft_wrap=True)
    for line in _remarks(plan, absent):
        out.print(line, markup=False, soft_wrap=True)
    return 0


def _as_json(step: Step, budget_s: float | None) -> dict[str, Any]:
    return {
        "position": step.planned.position if step.planned else None,
        "system": step.planned.chosen.label if step.planned else None,
        "cell": step.planned.cell.name if step.planned else None,
        "repetition": step.planned.repetition if step.planned else None,
        "text": step.text,
        "ends_s": step.ends_s,
        "within_budget": step.fits(budget_s),
    }


def _remarks(plan: DevicePlan, absent: list[str]) -> list[str]:
    lines = ["times are estimates, at the end of each line's step"]
    if plan.correctness is not None:
        lines.append(f"greedy output of {plan.correctness.prompts} prompts against transformers")
    if plan.profile is not None:
        loads = ", ".join(map(str, plan.profile.concurrencies))
        steps = f"{plan.profile.timed_steps} timed and {plan.profile.traced_steps} traced steps"
        lines.append(f"{steps} with each of {loads} in flight")
    if absent:
        lines.append(f"left out, no environment: {', '.join(absent)}")
    return lines


if __name__ == "__main__":
    # As Ctrl-C does it: the servers are stopped before the harness is gone.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
