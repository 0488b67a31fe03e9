"""How every figure looks, and how it is written so that the same data gives the same bytes.

Systems keep their colour, line and marker in all figures; their configurations are shades of the colour with
other dashes and fillings. The colours are Okabe and Ito's, told apart by colour-blind eyes; line and marker
tell everything apart without any colour.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import matplotlib
from matplotlib.colors import to_hex, to_rgb
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
    """A system's name for readers, and its look. `dashes` is in points, () for a solid line; `fill` is the
    part of the marker that is not white."""

    name: str
    color: str
    dashes: tuple[float, ...]
    marker: str
    fill: str = "full"

    @property
    def line(self) -> dict[str, Any]:
        """Keywords of a curve."""
        return {"color": self.color, "linestyle": (0, self.dashes) if self.dashes else "-"}

    @property
    def mark(self) -> dict[str, Any]:
        """Keywords of a single mark on a curve."""
        look = {"color": self.color, "marker": self.marker, "markersize": 5}
        if self.fill == "full":
            return look | {"markeredgecolor": "white"}
        look["markersize"] = 4.5
        if self.fill == "none":
            return look | {"markerfacecolor": "white"}
        return look | {"fillstyle": self.fill, "markerfacecoloralt": "white", "markeredgecolor": self.color}


SYSTEMS = {
    "engine": SystemStyle("engine", "#0072B2", (), "o"),
    "vllm": SystemStyle("vLLM", "#D55E00", (5, 2), "s"),
    "sglang": SystemStyle("SGLang", "#009E73", (5, 1.5, 1, 1.5), "^"),
    "transformers": SystemStyle("transformers", "#CC79A7", (1.2, 1.5), "D"),
    "tensorrt-llm": SystemStyle("TensorRT-LLM", "#56B4E9", (8, 2), "v"),
    "null": SystemStyle("null server", "#6b6b6b", (2, 3), "p"),
    "openai": SystemStyle("OpenAI-compatible", "#222222", (3, 1.5), "h"),
}

BLACK_LINE = SystemStyle("", "#000000", (9, 1.5, 1, 1.5), "*")
CONFIGURATIONS = ("default", "same_features", "tuned")
DASHES = ((12, 2.5), (2.2, 1.2), (9, 1.5, 1, 1.5, 1, 1.5), (4, 1, 1, 1), (1, 1), (1, 2.6))
FILLS = ("none", "left", "top", "right", "bottom")
SHADES = (-0.35, 0.3, -0.6, 0.45, -0.2)


def looks(lines: Sequence[tuple[str, str]]) -> dict[tuple[str, str], SystemStyle]:
    """The look of each (system, config). The three named configurations look the same in every run; many
    configurations of a single system have the looks of all systems, which are further apart."""
    systems = list(dict.fromkeys(system for system, _ in lines))
    if len(systems) == 1 and len(set(lines)) > len(CONFIGURATIONS):
        base = SYSTEMS[systems[0]]
        others = [look for look in [*SYSTEMS.values(), BLACK_LINE] if look is not base]
        pool = [replace(look, name=base.name) for look in [base, *others]]
        return {line: pool[number % len(pool)] for number, line in enumerate(dict.fromkeys(lines))}
    found = {}
    for system in systems:
        configs = list(dict.fromkeys(config for named, config in lines if named == system))
        ranked = [*CONFIGURATIONS, *(config for config in configs if config not in CONFIGURATIONS)]
        found |= {
            (system, config): _variant(SYSTEMS[system], systems.index(system), ranked.index(config))
            for config in configs
        }
    return found


def _variant(base: SystemStyle, place: int, rank: int) -> SystemStyle:
    """A configuration's look; neighbouring systems start at different dashes."""
    if rank == 0:
        return base
    number = (rank - 1) % len(FILLS)
    return replace(
        base,
        color=_shaded(base.color, SHADES[number]),
        dashes=DASHES[(number + 2 * place) % len(DASHES)],
        fill=FILLS[number],
    )


def _shaded(color: str, amount: float) -> str:
    """Mixed with black (amount below 0) or white, by its size."""
    towards = 0.0 if amount < 0 else 1.0
    return to_hex([part + (towards - part) * abs(amount) for part in to_rgb(color)])


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
