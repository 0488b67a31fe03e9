"""A figure as a page: a heading, panels placed in inches, and what the data is in small print below."""

from __future__ import annotations

import textwrap

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.runs import describe_machine, describe_model, describe_origin, not_drawn
from figures.style import MUTED, WIDTH_IN
from harness.store import Run

HEADING_IN = 0.52
SMALL_PRINT_IN = 0.2
LINE_IN = 0.14
LEFT_IN = 0.12
LINE_CHARACTERS = 148


class Page:
    """Panels are added from the top; `height_in` is the sum of their heights. `subject` is what was measured,
    if it is not the model of serving.csv."""

    def __init__(
        self, run: Run, title: str, height_in: float, notes: list[str], subject: str | None = None
    ) -> None:
        said = [*notes, not_drawn(run), describe_origin(run)]
        lines = [line for note in said for line in textwrap.wrap(note, LINE_CHARACTERS)]
        self.height_in = HEADING_IN + height_in + SMALL_PRINT_IN + LINE_IN * len(lines)
        self.figure = Figure(figsize=(WIDTH_IN, self.height_in))
        self.top_in = HEADING_IN
        subject = subject or describe_model(run.serving, run.manifest)
        subtitle = f"{subject} · {describe_machine(run.manifest)}"
        self._text(0.22, title, fontsize=11, fontweight="bold")
        self._text(0.42, subtitle, color=MUTED)
        for number, line in enumerate(reversed(lines)):
            self._text(self.height_in - 0.1 - number * LINE_IN, line, color=MUTED, fontsize=6.5)

    def _text(self, from_top_in: float, text: str, **look: object) -> None:
        self.figure.text(LEFT_IN / WIDTH_IN, 1 - from_top_in / self.height_in, text, va="baseline", **look)

    def axes(
        self, left_in: float, from_top_in: float, width_in: float, height_in: float, **options: object
    ) -> Axes:
        """Axes whose plotting area has this place, `from_top_in` below the heading."""
        bottom_in = self.height_in - HEADING_IN - from_top_in - height_in
        place = (
            left_in / WIDTH_IN,
            bottom_in / self.height_in,
            width_in / WIDTH_IN,
            height_in / self.height_in,
        )
        return self.figure.add_axes(place, **options)
