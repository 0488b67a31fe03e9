"""`python -m harness compare A B`: ratios with intervals, for people and for programs, and gates.

Exit codes: 0; 1 a gate is broken; 2 what was asked cannot be done (no such run, nothing in common, a gate
without an interval).
"""

from __future__ import annotations

import argparse
import json
import math
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from harness.agreement import same_outputs
from harness.errors import BadInput
from harness.gate import Gate
from harness.looking import RESULTS
from harness.ratios import METRICS, Comparison, Side, compare, unmatched
from harness.store import list_runs, load_run

COLUMNS = 80


def _amount(value: float | None) -> str:
    """Four digits or all before the point; '-' for none."""
    return "-" if value is None else f"{value:,.{max(0, 3 - math.floor(math.log10(value)))}f}"


def _table(comparison: Comparison) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("load", overflow="fold")
    for heading in ("n", "A", "B"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("B / A [low, high]", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for load in comparison.loads:
        bounds = str(load.interval) if load.interval else f"{load.ratio:.3f}" if load.ratio else "-"
        verdict = "B lost" if load.lost else comparison.verdict(load.interval)
        table.add_row(load.load, str(len(load.pairs)), _amount(load.a), _amount(load.b), bounds, verdict)
    if pooled := comparison.pooled:
        table.add_row(
            comparison.pooled_name, str(pooled.pairs), "", "", str(pooled), comparison.verdict(pooled)
        )
    return table


def remarks(comparison: Comparison) -> list[str]:
    """What has to be known to read the table, a line each."""
    every = {**comparison.intervals, comparison.pooled_name: comparison.pooled}
    lines = [f"{found.caveat} ({name})" for name, found in every.items() if found and found.caveat]
    single = [load.load for load in comparison.loads if len(load.pairs) == 1]
    if single:
        lines.append(f"one repetition, hence no interval: {', '.join(single)}")
    for run, trend in comparison.drifts.items():
        lines.append(
            f"drift over the order of {run}: {trend.over_run - 1:+.1%} from first to last place, "
            f"p = {trend.p:.2g} ({trend.values} values)"
        )
    if lag := comparison.mean_lag:
        shifts = [
            f" and shifts the ratio by {math.expm1(trend.slope * lag):+.1%}"
            for trend in comparison.drifts.values()
        ]
        lines.append(
            f"B stands {lag:+.1f} places after A on average: a drift does not cancel{''.join(shifts)}"
        )
    lines += [f"left out: {line}" for line in comparison.left_out]
    return lines + [f"differs, A / B: {line}" for line in comparison.differs]


def same_texts(comparison: Comparison, a: Side, b: Side) -> tuple[int, int]:
    """How many requests of the compared cells had the same text on both sides, of how many that both answered
    well: whether the work that was timed was the same."""
    same = compared = 0
    for pair in comparison.pairs:
        requests = [
            side.requests[side.requests["cell"] == cell]
            for side, cell in zip((a, b), pair.cells, strict=True)
        ]
        found = same_outputs(*requests)
        same, compared = same + found[0], compared + found[1]
    return same, compared


def print_comparison(comparison: Comparison, a: Side, b: Side) -> None:
    """Table and remarks, COLUMNS wide."""
    heading = (
        f"A = {comparison.a}", f"B = {comparison.b}",
        f"{comparison.metric} ({comparison.better} is better), 95 % t-intervals over n pairs",
    )  # fmt: skip
    _say(heading)
    Console(highlight=False).print(_table(comparison))
    same, compared = same_texts(comparison, a, b)
    if compared:
        _say([f"same text in {same:,} of {compared:,} requests ({same / compared:.1%})"])
    _say(remarks(comparison))


def _say(lines: Sequence[str]) -> None:
    for line in lines:
        print(textwrap.fill(line, COLUMNS, subsequent_indent="  ", break_on_hyphens=False))


def as_json(comparison: Comparison) -> dict[str, Any]:
    """For programs: every number of the table, and the pairs behind it."""
    loads = [
        {
            **asdict(load), "a": load.a, "b": load.b, "ratio": load.ratio,
            "interval": asdict(load.interval) if load.interval else None,
            "verdict": "B lost" if load.lost else comparison.verdict(load.interval),
        }
        for load in comparison.loads
    ]  # fmt: skip
    pooled = comparison.pooled
    return {
        **asdict(comparison), "loads": loads, "pooled": asdict(pooled) if pooled else None,
        "remarks": remarks(comparison),
    }  # fmt: skip


def read_side(text: str, results: Path) -> Side:
    """RUN or RUN/SYSTEM[:CONFIG]; RUN is a name in `results`, or a folder. Without CONFIG it is default.

    Raises BadInput when there is none, and what load_run raises.
    """
    run, _, system = text.rpartition("/")
    for name, of in ((text, None), (run, system.removesuffix(":default"))):
        for path in (results / name, results / f".{name}.partial", Path(name)):
            if name and path.is_dir():
                loaded = load_run(path)
                return Side(loaded.manifest.run, of, loaded.serving, loaded.requests)
    known = ", ".join(state.run for state in list_runs(results)) or "none yet"
    raise BadInput(f"no run {text!r} in {results}; there are: {known}")


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} must be a share: at least 0 and below 1")
    return value


def register(commands: argparse._SubParsersAction) -> None:
    """Adds `compare` to the commands of the harness."""
    parser = commands.add_parser("compare", help="ratios of two runs or systems with intervals, and gates")
    parser.add_argument("a", metavar="A", help="RUN or RUN/SYSTEM[:CONFIG]: the side to compare with")
    parser.add_argument("b", metavar="B", help="the same: the side in question")
    parser.add_argument("--metric", default="output_tokens_per_s", help=", ".join(METRICS))
    gates = parser.add_mutually_exclusive_group()
    gates.add_argument("--max-loss", type=_share, metavar="SHARE", help="exit 1 when B is worse by more")
    gates.add_argument("--within", type=_share, metavar="SHARE", help="exit 1 unless B is this close to A")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the runs")
    parser.add_argument("--json", action="store_true", help="for programs, on stdout")
    parser.set_defaults(command=_command)


def _gate(args: argparse.Namespace) -> Gate | None:
    if args.max_loss is not None:
        return Gate("max-loss", args.max_loss)
    return Gate("within", args.within) if args.within is not None else None


def _command(args: argparse.Namespace, _arguments: list[str]) -> int:
    a, b = read_side(args.a, args.results), read_side(args.b, args.results)
    found, alone, gate = compare(a, b, args.metric), unmatched(a, b), _gate(args)
    if not args.json:
        for comparison in found:
            print_comparison(comparison, a, b)
        _say([f"left out: {line}" for line in alone])
    breaches = [f"{each.b}: {line}" for each in found for line in gate.breaches(each)] if gate else []
    doubts = [f"{each.b}: {line}" for each in found for line in gate.doubts(each)] if gate else []
    rule = gate.rule(METRICS[args.metric]) if gate else None
    if args.json:
        texts = [dict(zip(("same", "compared"), same_texts(each, a, b), strict=True)) for each in found]
        shown = {
            "comparisons": [as_json(each) | {"texts": text} for each, text in zip(found, texts, strict=True)],
            "unmatched": alone,
        }
        print(json.dumps({**shown, "rule": rule, "breaches": breaches, "doubts": doubts}))
    elif rule:
        reasons = [f"broken by {line}" for line in breaches] + [f"not excluded: {line}" for line in doubts]
        _say([rule, *reasons, "BROKEN" if breaches else "kept"])
    return 1 if breaches else 0
