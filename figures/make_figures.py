"""Draws every figure of every complete run from its CSVs alone: `python -m figures.make_figures`.

Output goes to figures/<run>/<figure>.svg and .png. The same data gives the same bytes, so `--check` can tell
whether a committed figure is what its data draws.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from figures import (
    ablation,
    agreement,
    attainment,
    attention,
    distributions,
    energy,
    latency,
    profile,
    roofline,
    scaling,
    throughput,
    tradeoff,
)
from figures.runs import RESULTS, complete_runs
from figures.style import house_style, render
from harness.store import Run

DRAWN = Path(__file__).resolve().parent
FIGURES: dict[str, Callable[[Run], Figure | None]] = {
    "throughput": throughput.draw,
    "latency": latency.draw,
    "agreement": agreement.draw,
    "scaling": scaling.draw,
    "tradeoff": tradeoff.draw,
    "distributions": distributions.draw,
    "attainment": attainment.draw,
    "roofline": roofline.draw,
    "energy": energy.draw,
    "attention": attention.draw,
    "ablation": ablation.draw,
    "profile": profile.draw,
}


def drawn_files(run: Run) -> dict[str, bytes]:
    """Every file of figures/<run>/ by its name. Figures without a row that may be drawn are left out."""
    files = {}
    for name, draw in FIGURES.items():
        with house_style():
            figure = draw(run)
            if figure is not None:
                files |= {f"{name}.{suffix}": content for suffix, content in render(figure).items()}
    return files


def differences(folder: Path, files: dict[str, bytes]) -> list[str]:
    """How a folder differs from the files it should hold, a line each."""
    present = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    found = [f"{folder / name}: missing" for name in files.keys() - present]
    found += [f"{folder / name}: nothing draws it" for name in present - files.keys()]
    found += [
        f"{folder / name}: differs from its redrawing"
        for name in files.keys() & present
        if (folder / name).read_bytes() != files[name]
    ]
    return sorted(found)


def write(folder: Path, files: dict[str, bytes]) -> None:
    """Makes `folder` hold exactly these files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        partial = folder / f".{name}.tmp"
        partial.write_bytes(content)
        partial.replace(folder / name)
    for path in folder.iterdir():
        if path.name not in files:
            path.unlink()


def check_all(runs: list[Run], drawn: Path) -> list[str]:
    """Differences of every drawn folder, those of no complete run included."""
    found = [line for run in runs for line in differences(drawn / run.path.name, drawn_files(run))]
    known = {run.path.name for run in runs}
    orphans = [folder for folder in drawn_folders(drawn) if folder.name not in known]
    return found + [f"{folder}: there is no complete run of this name" for folder in orphans]


def drawn_folders(drawn: Path) -> list[Path]:
    """The folders of figures there are, by name."""
    if not drawn.is_dir():
        return []
    return sorted(path for path in drawn.iterdir() if path.is_dir() and path.name != "__pycache__")


def main(arguments: list[str] | None = None) -> int:
    """0: drawn, or equal with --check; 1: a damaged run, or --check found a difference; 2: no such run."""
    options = _parser().parse_args(arguments)
    runs, skipped = complete_runs(options.results)
    if options.run is None:
        for line in skipped:
            print(f"skipped {line}")
        if options.check:
            return _report(check_all(runs, options.out))
        _draw(runs, options)
        return 1 if any("damaged" in line for line in skipped) else 0
    chosen = [run for run in runs if run.path.name == options.run]
    if not chosen:
        names = ", ".join(run.path.name for run in runs) or "none"
        print(f"no complete run {options.run!r} in {options.results}; there are: {names}", file=sys.stderr)
        return 2
    if options.check:
        return _report(differences(options.out / options.run, drawn_files(chosen[0])))
    return _draw(chosen, options)


def _draw(runs: list[Run], options: argparse.Namespace) -> int:
    if not runs:
        print(f"no complete run in {options.results}: nothing to draw")
    for run in runs:
        files = drawn_files(run)
        write(options.out / run.path.name, files)
        print(
            f"{options.out / run.path.name}: {', '.join(sorted(files)) or 'nothing is VALID, nothing drawn'}"
        )
    return 0


def _report(found: list[str]) -> int:
    for line in found:
        print(line, file=sys.stderr)
    if not found:
        print("every figure is what its data draws")
    return 1 if found else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m figures.make_figures", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--run", help="this run only; default: all")
    parser.add_argument(
        "--check", action="store_true", help="draw nothing; exit 1 where a file differs from its redrawing"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the runs (%(default)s)")
    parser.add_argument(
        "--out", type=Path, default=DRAWN, help="folder that gets a folder a run (%(default)s)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
