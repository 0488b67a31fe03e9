"""Word of a long job on stderr, for whoever waits for it."""

import sys
import threading
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

QUIET_S = 2.0


class Progress:
    """A context that stays silent for two seconds, then shows a bar, or one line where no terminal is."""

    def __init__(self, label: str) -> None:
        console = Console(stderr=True)
        self._label = label
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task(label, total=None)
        show = self._bar.start if console.is_terminal else self._say
        self._timer = threading.Timer(QUIET_S, show)
        self._timer.daemon = True

    def expect(self, total: int) -> None:
        """The bytes that the job will write."""
        self._bar.update(self._task, total=total)

    def advance(self, count: int) -> None:
        """`count` more bytes are written."""
        self._bar.advance(self._task, count)

    def _say(self) -> None:
        print(f"{self._label} …", file=sys.stderr, flush=True)

    def __enter__(self) -> "Progress":
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        self._timer.join()
        if self._bar.live.is_started:
            self._bar.stop()
