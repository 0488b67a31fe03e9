"""Runs for people: one table of cells with their verdicts, and where each file lies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from harness.agreement import Agreement, between, by_system
from harness.schema import CorrectnessRow, KneeRow, ServerLaunch, ServingRow
from harness.store import RunState

PIPED_COLUMNS = 110


def stdout_console() -> Console:
    """Standard output, as wide as the terminal, or wide enough for every table where it is a file."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPED_COLUMNS)


VERDICT_STYLES = {"VALID": "green", "INVALID": "bold red"}


def _number(value: float | None, digits: int) -> str:
    """Fixed digits; '-' for undefined, 'inf' for failed."""
    if value is None:
        return "-"
    return "inf" if math.isinf(value) else f"{value:,.{digits}f}"


def _pair(median: float | None, high: float | None, digits: int) -> str:
    return f"{_number(median, digits)} / {_number(high, digits)}"


def _system(row: ServingRow) -> str:
    return row.system if row.config == "default" else f"{row.system}:{row.config}"


def _load(row: ServingRow) -> str:
    """Name of the load and, where it has several, of the repetition; rows of older runs have neither."""
    if row.load_name:
        return f"{row.load_name} r{row.repetition}"
    return (
        f"{row.load} C={row.concurrency}" if row.concurrency is not None else f"{row.load} {row.rate_rps:g}/s"
    )


def cell_table(rows: Sequence[ServingRow]) -> Table:
    """A line a cell."""
    first = rows[0]
    title = f"{first.run}: {first.model} ({first.weights} weights), {first.dtype} on {first.box}"
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
    for heading in ("system", "load", "verdict"):
        table.add_column(heading, no_wrap=True)
    for heading in ("n", "tok/s", "TTFT ms\np50 / p99", "TPOT ms\np50 / p99"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            _system(row),
            _load(row),
            f"[{VERDICT_STYLES[row.verdict]}]{row.verdict}[/]",
            str(row.requests),
            _number(row.output_tokens_per_s, 1),
            _pair(row.ttft_ms_p50, row.ttft_ms_p99, 1),
            _pair(row.tpot_ms_p50, row.tpot_ms_p99, 2),
        )
    return table


def remarks(rows: Sequence[ServingRow]) -> list[str]:
    """Why cells are INVALID and what to know of the others, a line a cell that has either."""
    texts = [(row, "; ".join(text for text in (row.reasons, row.notes) if text)) for row in rows]
    return [f"{_system(row)}, {_load(row)}: {row.verdict}: {text}" for row, text in texts if text]


def correctness_line(rows: Sequence[CorrectnessRow]) -> str:
    """How many prompts were answered as the reference does, and the first that was not."""
    different = [row for row in rows if not row.identical]
    line = (
        f"correctness: {len(rows) - len(different)} of {len(rows)} prompts identical to transformers in fp32"
    )
    if not different:
        return line
    first = different[0]
    what = f"token {first.first_divergence} differs (top-2 logit gap there: {first.gap_at_divergence})"
    return f"{line}; {first.system}, prompt {first.prompt}: {first.error or what}"


def agreement_lines(rows: Sequence[CorrectnessRow]) -> list[str]:
    """Teacher-forced agreement and the span of gaps at first divergences: a line a system that has either."""
    lines = [(system, _agreement(found)) for system, found in by_system(rows).items()]
    return [f"{system}: {line}" for system, line in lines if line]


def between_lines(rows: Sequence[CorrectnessRow]) -> list[str]:
    """How far systems agree with each other, a line a pair."""
    return [
        f"{pair.a} and {pair.b}: {pair.identical} of {pair.prompts} prompts identical"
        + (f", {pair.unknown} not known" if pair.unknown else "")
        for pair in between(rows)
    ]


def _agreement(found: Agreement) -> str:
    parts = []
    if found.forced_share is not None:
        parts.append(
            f"teacher-forced agreement {found.forced_agree:,} of {found.forced_tokens:,} tokens "
            f"({found.forced_share:.2%})"
        )
    if found.gaps:
        parts.append(f"top-2 logit gap at first divergences {found.gaps[0]:.3g} to {found.gaps[-1]:.3g}")
    return "; ".join(parts)


def knee_line(knee: KneeRow) -> str:
    """A knee as an interval of rates."""
    name = knee.system if knee.config == "default" else f"{knee.system}:{knee.config}"
    nothing = "not even the lowest rate" if knee.complete else "no rate tried so far"
    low = nothing if knee.low_rps is None else f"{knee.low_rps:g} requests/s"
    high = "none failed" if knee.high_rps is None else f"not with {knee.high_rps:g}"
    cut = "" if knee.complete else ", not finished"
    return f"{knee.search}, {name}: keeps up with {low}, {high} ({knee.cells} cells{cut})"


def settings_lines(servers: Sequence[ServerLaunch]) -> list[str]:
    """How each configuration was started, with the reason for whatever a user would not have typed."""
    lines = []
    for server in {(server.system, server.config): server for server in servers}.values():
        share = "its own" if server.memory_share is None else f"{server.memory_share:g}"
        lines.append(
            f"{server.system}:{server.config} ({server.version}): {server.reason or 'as recorded'}; "
            f"{server.dtype}, context {server.max_model_len}, share of GPU memory {share}, prefix cache "
            f"{server.prefix_cache}"
        )
        lines += [f"  {name}: {reason}" for name, reason in server.reasons.items()]
    return lines


def print_run(
    console: Console,
    path: Path,
    rows: Sequence[ServingRow],
    checked: Sequence[CorrectnessRow],
    knees: Sequence[KneeRow],
) -> None:
    """Table, remarks, knees, correctness, and every file of the run."""
    if rows:
        console.print(cell_table(rows))
    lines = [
        *remarks(rows),
        *map(knee_line, knees),
        *([correctness_line(checked)] if checked else []),
        *agreement_lines(checked),
        *between_lines(checked),
    ]
    lines += [f"  {file}" for file in sorted(path.rglob("*")) if file.is_file()]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def run_list(states: Sequence[RunState]) -> Table:
    """A line a run; incomplete and damaged ones are said to be so."""
    table = Table("run", "stage", "created", "state", box=box.SIMPLE_HEAD, pad_edge=False)
    for state in states:
        table.add_row(state.run, state.stage, state.created_at, state.state)
    return table
