"""Commands that look at runs, or put them together: verify, report, list, merge, columns, source."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from harness.attention.report import show as show_attention
from harness.errors import BadInput
from harness.merge import merge
from harness.report import print_run, run_list, settings_lines, stdout_console
from harness.schema import AttentionRow, CorrectnessRow, KneeRow, ServingRow, markdown
from harness.source import write_source_file
from harness.store import list_runs, load_run, write_atomically
from harness.verify import verify

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "v1"
COLUMNS_BEGIN, COLUMNS_END = "<!-- columns:begin -->", "<!-- columns:end -->"
out = stdout_console()


def register(commands: argparse._SubParsersAction) -> None:
    """Adds these commands to those of the harness."""
    for name, command, text in (
        ("verify", _verify, "recompute every summary value from raw rows, and every checksum"),
        ("report", _report, "print the tables of a run"),
    ):
        reading = commands.add_parser(name, help=text)
        reading.add_argument("run", help="name of a run, or its folder")
        reading.add_argument("--results", type=Path, default=RESULTS, help="folder of the runs")
        reading.add_argument("--json", action="store_true", help="for programs, on stdout")
        reading.set_defaults(command=command)

    listing = commands.add_parser("list", help="list the runs there are, complete or not")
    listing.add_argument("--results", type=Path, default=RESULTS, help="folder of the runs")
    listing.add_argument("--json", action="store_true", help="for programs, on stdout")
    listing.set_defaults(command=_list)

    merging = commands.add_parser("merge", help="make one run of several of the same stage, cell by cell")
    merging.add_argument("name", help="name of the run to be made")
    merging.add_argument("runs", nargs="+", metavar="RUN", help="complete runs; the first wins")
    merging.add_argument("--results", type=Path, default=RESULTS, help="folder of the runs")
    merging.add_argument("--json", action="store_true", help="for programs, on stdout")
    merging.set_defaults(command=_merge)

    columns = commands.add_parser(
        "columns", help="print columns and manifest fields as markdown (RUNBOOK.md holds it)"
    )
    columns.add_argument("--into", type=Path, help="put it between the markers of this file instead")
    columns.set_defaults(command=_columns)
    source = commands.add_parser(
        "source", help="write .source.json, for a box that gets this checkout without git"
    )
    source.set_defaults(command=_source)


def _verify(args: argparse.Namespace, _arguments: list[str]) -> int:
    path = run_path(args)
    differences = verify(path)
    if args.json:
        print(json.dumps({"run": path.name, "differences": differences}))
    elif differences:
        print("\n".join(differences))
    else:
        print(f"{path.name}: every checksum and every value of serving.csv is what the raw rows say")
    return 1 if differences else 0


def _report(args: argparse.Namespace, _arguments: list[str]) -> int:
    run = load_run(run_path(args))
    if kernels := run.records(AttentionRow):
        show_attention(args.json, run.path, kernels, out)
        return 0
    show(args.json, run.path, run.records(ServingRow), run.records(CorrectnessRow), run.records(KneeRow))
    if not args.json:
        for line in settings_lines(run.manifest.servers):
            out.print(line, markup=False, soft_wrap=True)
    return 0


def _merge(args: argparse.Namespace, _arguments: list[str]) -> int:
    path = merge(args.results, args.name, args.runs)
    print(json.dumps({"run": path.name, "path": str(path)}) if args.json else path)
    return 0


def show(
    as_json: bool,
    path: Path,
    serving: list[ServingRow],
    correctness: list[CorrectnessRow],
    knees: list[KneeRow],
) -> None:
    """A run on stdout, as text or as JSON."""
    if as_json:
        tables = {"serving": serving, "correctness": correctness, "knees": knees}
        listed = {name: [json.loads(row.model_dump_json()) for row in rows] for name, rows in tables.items()}
        print(json.dumps({"run": path.name, "path": str(path), **listed}))
    else:
        print_run(out, path, serving, correctness, knees)


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


def run_path(args: argparse.Namespace) -> Path:
    """A run by its folder, or by its name among complete and incomplete ones. Raises BadInput."""
    for path in (args.results / args.run, args.results / f".{args.run}.partial", Path(args.run)):
        if path.is_dir():
            return path
    known = ", ".join(state.run for state in list_runs(args.results)) or "none yet"
    raise BadInput(f"no run {args.run!r} in {args.results}; there are: {known}")
