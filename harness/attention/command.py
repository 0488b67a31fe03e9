"""`python -m harness run attention` and `plan attention`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from harness.attention.plan import load_attention_stage
from harness.attention.report import show
from harness.attention.run import STAGE, AttentionOptions, run_attention
from harness.errors import BadInput
from harness.systems.environment import PROJECT, find_environments

OF_SERVERS = ("system", "model", "after", "tuned_by")


def run(args: argparse.Namespace, arguments: list[str], device: str, root: Path, out: Console) -> int:
    """0, or 1 where a row is INVALID for another reason than memory. Raises BadInput or StoreError."""
    for name in OF_SERVERS:
        if getattr(args, name):
            raise BadInput(f"stage {STAGE} serves nothing: it takes no --{name.replace('_', '-')}")
    outcome = run_attention(
        AttentionOptions(
            stage=load_attention_stage(),
            device=device,
            project=find_environments(args.env, root)[PROJECT],
            results=args.results,
            root=root,
            command=arguments,
            run=args.run,
            box=args.box,
            budget_s=args.budget_s,
        )
    )
    show(args.json, outcome.path, outcome.rows, out)
    return 0 if outcome.valid else 1


def plan(args: argparse.Namespace, device: str, out: Console) -> int:
    """The blocks in their order; how long they take is not known before they are compiled."""
    stage = load_attention_stage()
    blocks = stage.on(device).blocks()
    if args.json:
        cells: list[dict[str, Any]] = [
            {"block": number, "case": cell.case, "impl": cell.impl, "direction": cell.direction}
            for number, block in enumerate(blocks)
            for cell in block.cells
        ]
        print(json.dumps({"stage": STAGE, "device": device, "cells": cells}))
        return 0
    out.print(f"{STAGE} on {device}: {stage.declared.description}", markup=False)
    for block in blocks:
        impls = ", ".join(dict.fromkeys(cell.impl for cell in block.cells))
        out.print(f"{block.cells[0].case}: {impls}", markup=False, soft_wrap=True)
    return 0
