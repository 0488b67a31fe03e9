"""What a person sees while a run goes on: bars on a terminal, one line a phase elsewhere. All on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

console = Console(stderr=True, highlight=False)


def say(text: str) -> None:
    """A line that stays."""
    console.print(text, markup=False, soft_wrap=True)


@contextmanager
def phase(name: str, total: float | None = None) -> Iterator[Callable[[float], None]]:
    """A phase with a bar towards `total` (None: unknown); yields the function that says how far it is."""
    started = time.monotonic()
    if not console.is_terminal:
        print(f"{name} ...", end="", file=sys.stderr, flush=True)
        try:
            yield lambda _done: None
        finally:
            print(f" {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)
    else:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task(name, total=total)
            yield lambda done: progress.update(task, completed=done)
        say(f"{name} ... {time.monotonic() - started:.1f} s")


def minutes(seconds: float) -> str:
    """A length of time as people say it: 40 s, 12 min."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
