"""How every figure looks, and how it is written so that the same data gives the same bytes.

Systems keep their colour, line and marker in all figures. The colours are Okabe and Ito's, told apart by
colour-blind eyes; line and marker tell systems apart without any colour.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.figure import Figure

# Otherwise a font of the machine could stand in for the one that matplotlib ships.
os.environ["MPL_IGNORE_SYSTEM_FONTS"] = "1"

WIDTH_IN = 7.2
PNG_DPI = 200
INK = "#222222"
MUTED = "#6b6b6b"
RULE = "#d9d9d9"


@dataclass(frozen=True)
class SystemStyle:
    """A system's name for readers, and its look. `dashes` is in points, () for a solid line."""

    name: str
    color: str
    dashes: tuple[float, ...]
    marker: str

    @property
    def line(self) -> dict[str, Any]:
        """Keywords of a curve."""
        return {"color": self.color, "linestyle": (0, self.dashes) if self.dashes else "-"}

    @property
    def mark(self) -> dict[str, Any]:
        """Keywords of a single mark on a curve."""
        return {"color": self.color, "marker": self.marker, "markersize": 5, "markeredgecolor": "white"}


SYSTEMS = {
    "engine": SystemStyle("engine", "#0072B2", (), "o"),
    "vllm": SystemStyle("vLLM", "#D55E00", (5, 2), "s"),
    "sglang": SystemStyle("SGLang", "#009E73", (5, 1.5, 1, 1.5), "^"),
    "transformers": SystemStyle("transformers", "#CC79A7", (1.2, 1.5), "D"),
    "tensorrt-llm": SystemStyle("TensorRT-LLM", "#56B4E9", (8, 2), "v"),
    "null": SystemStyle("null server", "#6b6b6b", (2, 3), "x"),
    "openai": SystemStyle("OpenAI-compatible", "#222222", (3, 1.5), "P"),
}

_SETTINGS = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.titlepad": 6,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.5,
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "xtick.labelsize": 7.5,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
    "ytick.labelsize": 7.5,
    "lines.linewidth": 1.5,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.fonttype": "path",
    "svg.hashsalt": "llm-ladder",
}


@contextmanager
def house_style() -> Iterator[None]:
    """Draw and render inside: no setting of the user takes part."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        yield


def render(figure: Figure) -> dict[str, bytes]:
    """The figure's files by suffix (svg, png), without dates or versions inside."""
    metadata = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}
    files = {}
    for suffix, described in metadata.items():
        content = io.BytesIO()
        figure.savefig(content, format=suffix, dpi=PNG_DPI, metadata=described)
        files[suffix] = content.getvalue()
    return files
