"""A run of the stage for people: a table a panel."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from harness.attention.summary import MEMORY, Panel, invalid_lines, panels
from harness.schema import AttentionRow


def show(as_json: bool, path: Path, rows: Sequence[AttentionRow], out: Console) -> None:
    """A run on stdout, as text or as JSON."""
    if as_json:
        listed = [json.loads(row.model_dump_json()) for row in rows]
        print(json.dumps({"run": path.name, "path": str(path), "attention": listed}))
    else:
        _print_attention(out, path, rows)


def _print_attention(console: Console, path: Path, rows: Sequence[AttentionRow]) -> None:
    """Tables, what is INVALID, the floor, and every file of the run."""
    for panel in panels(rows):
        console.print(_title(panel), markup=False)
        console.print(_table(panel))
    lines = invalid_lines(rows)
    if rows:
        lines.append(
            f"floor: matmul {rows[0].matmul_tflops:,.4g} TFLOP/s, copy {rows[0].copy_gb_per_s:,.4g} GB/s"
        )
    lines += [f"  {file}" for file in sorted(path.rglob("*")) if file.is_file()]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _title(panel: Panel) -> str:
    unit = "GB/s" if panel.direction == "decode" else "TFLOP/s"
    memory = ", below it MiB above the inputs" if panel.sweep == MEMORY else ""
    return f"{panel.sweep}, {panel.direction}, D {panel.head_dim}: {unit} at batch x sequence{memory}"


def _table(panel: Panel) -> Table:
    column = "gb_per_s" if panel.direction == "decode" else "tflops"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("impl", no_wrap=True)
    for batch, seq in panel.shapes:
        table.add_column(f"{batch} x\n{seq:,}", justify="right")
    for impl in panel.lines:
        values = []
        for shape in panel.shapes:
            texts = [_number(panel.mean(impl, shape, column))]
            if panel.sweep == MEMORY:
                texts.append(_number(panel.mean(impl, shape, "peak_mib")))
            values.append("\n".join(texts))
        table.add_row(impl, *values)
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"
