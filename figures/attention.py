"""Attention kernels: TFLOP/s by sequence length, memory by sequence length, and decode against the copy rate.

A panel a head size and direction; each sweep of the stage file with three lengths or more has a row of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from figures.axes import load_axis, log_axis, span
from figures.format import count, three_digits
from figures.lines import draw_line, limits_of
from figures.page import Page
from figures.spread import Spread, described, of_values
from figures.style import SystemStyle
from harness.attention.summary import MEMORY, Panel, panels
from harness.schema import AttentionRow
from harness.store import Run

LEAST_LENGTHS = 3
TITLE_IN, PANEL_IN, AXIS_IN = 0.3, 1.75, 0.52
LEFT_IN, GAP_IN, PANEL_WIDTH_IN = 0.72, 0.78, 2.62
KEY_ROW_IN, KEY_COLUMN_IN, KEY_COLUMNS = 0.2, 1.62, 4

STYLES = {
    "triton": SystemStyle("ours (Triton)", "#0072B2", (), "o"),
    "triton_fused": SystemStyle("ours, RoPE and write in", "#0072B2", (2.2, 1.2), "o", "none"),
    "triton_invariant": SystemStyle("ours, batch-invariant", "#0072B2", (1, 1), "*", "none"),
    "sdpa_flash": SystemStyle("SDPA flash", "#D55E00", (5, 2), "s"),
    "sdpa_cudnn": SystemStyle("SDPA cuDNN", "#009E73", (5, 1.5, 1, 1.5), "^"),
    "flex": SystemStyle("FlexAttention", "#CC79A7", (1.2, 1.5), "D"),
    "varlen": SystemStyle("varlen_attn", "#E69F00", (8, 2), "v"),
    "compiled_naive": SystemStyle("compiled naive", "#6b6b6b", (2, 3), "p"),
    "naive": SystemStyle("naive", "#222222", (3, 1.5), "h"),
    "reference": SystemStyle("our reference", "#56B4E9", (9, 1.5, 1, 1.5), "X"),
}


@dataclass(frozen=True)
class Chart:
    """A panel as it is drawn: what of each implementation over which lengths."""

    panel: Panel
    column: str

    @property
    def lines(self) -> dict[str, dict[float, Spread]]:
        """Spreads over sequence length, of implementations that have any."""
        found = {
            impl: {float(seq): self._spread(rows) for (_, seq), rows in at.items()}
            for impl, at in self.panel.lines.items()
        }
        return {impl: spreads for impl, spreads in found.items() if spreads}

    def _spread(self, rows: list[AttentionRow]) -> Spread:
        return of_values(getattr(row, self.column) for row in rows)

    @property
    def title(self) -> str:
        """Without the direction, which the panel's side says too."""
        rows = [row for at in self.panel.lines.values() for each in at.values() for row in each]
        mask = "causal" if rows[0].causal else "no mask"
        return f"{self.panel.direction}, D = {self.panel.head_dim}, {mask}, {_heads(rows[0])}"


def draw(run: Run) -> Figure | None:
    """The figure, or None for a run without VALID rows of a sweep with enough lengths, or of decode."""
    rows = run.records(AttentionRow)
    found = panels(rows)
    speed = _charts(found, "tflops", memory=False)
    memory = _charts(found, "peak_mib", memory=True)
    decode = [panel for panel in found if panel.direction == "decode" and any(panel.lines.values())]
    if not (speed or memory or decode):
        return None
    valid = {row.impl for row in rows if row.verdict == "VALID"}
    shown = [impl for impl in STYLES if impl in valid]
    key_in = KEY_ROW_IN * -(-len(shown) // KEY_COLUMNS) + 0.1
    row_in = TITLE_IN + PANEL_IN + AXIS_IN
    height_in = key_in + row_in * (len(speed) + len(memory) + len(decode))
    page = Page(run, "Attention kernels", height_in, notes(rows), subject=_subject(rows))
    _draw_key(page.axes(LEFT_IN, 0, KEY_COLUMN_IN * KEY_COLUMNS, key_in - 0.1), shown)
    tops = (key_in + number * row_in + TITLE_IN for number in range(len(speed) + len(memory) + len(decode)))
    for pair in [*speed, *memory]:
        top_in = next(tops)
        for side, chart in enumerate(pair):
            _draw_chart(page, LEFT_IN + side * (PANEL_WIDTH_IN + GAP_IN), top_in, chart, pair)
    for panel in decode:
        _draw_decode(page.axes(LEFT_IN, next(tops), 2 * PANEL_WIDTH_IN + GAP_IN, PANEL_IN), panel)
    return page.figure


def _charts(found: Sequence[Panel], column: str, *, memory: bool) -> list[list[Chart]]:
    """Charts side by side: the directions of one sweep and head size."""
    rows: dict[tuple[str, int], list[Chart]] = {}
    for panel in found:
        enough = len(panel.shapes) >= LEAST_LENGTHS and any(panel.lines.values())
        if enough and panel.direction != "decode" and (panel.sweep == MEMORY) == memory:
            rows.setdefault((panel.sweep, panel.head_dim), []).append(Chart(panel, column))
    return list(rows.values())


def notes(rows: Sequence[AttentionRow]) -> list[str]:
    """What the marks are, by what they are measured, and what is not drawn."""
    valid = [row for row in rows if row.verdict == "VALID"]
    samples = [row.samples for row in valid]
    repetitions: dict[tuple[str, str, str], int] = {}
    for row in valid:
        key = row.case, row.impl, row.direction
        repetitions[key] = repetitions.get(key, 0) + 1
    lines = [
        f"Each repetition is the median of n = {_from_to(samples)} samples, the L2 cache "
        f"flushed before each, implementations in alternation; {described(repetitions.values())}.",
        "TFLOP/s: forward 4 B H S² D, half of it when causal; backward 2.5 times the forward, whatever is "
        "executed. Memory: most in use above the inputs.",
        f"In the same run a square matmul reached {three_digits(rows[0].matmul_tflops)} TFLOP/s, a copy "
        f"within the device {three_digits(rows[0].copy_gb_per_s)} GB/s.",
    ]
    if invalid := len(rows) - len(valid):
        lines.append(f"not drawn: {count(invalid)} INVALID rows ({_why(rows)}), see attention.csv")
    return lines


def _from_to(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low} to {high}"


def _why(rows: Sequence[AttentionRow]) -> str:
    """The implementations that have INVALID rows, with the reasons in short."""
    found = {
        f"{STYLES[row.impl].name}: {row.reasons.partition(':')[0]}": None
        for row in rows
        if row.verdict != "VALID"
    }
    return ", ".join(found)


def _subject(rows: Sequence[AttentionRow]) -> str:
    return f"{' and '.join(sorted({row.dtype for row in rows}))}, torch {rows[0].torch_version}"


def _heads(row: AttentionRow) -> str:
    if row.heads == row.kv_heads:
        return f"{row.heads} heads"
    return f"{row.heads} query and {row.kv_heads} KV heads"


def _draw_key(axes: Axes, shown: Sequence[str]) -> None:
    axes.set_axis_off()
    axes.set_xlim(0, KEY_COLUMNS)
    axes.set_ylim(-(-len(shown) // KEY_COLUMNS), 0)
    for number, impl in enumerate(shown):
        row, column = divmod(number, KEY_COLUMNS)
        style = STYLES[impl]
        axes.plot([column, column + 0.2], [row + 0.5] * 2, clip_on=False, **style.line)
        axes.plot(column + 0.1, row + 0.5, clip_on=False, **style.mark)
        axes.text(column + 0.26, row + 0.5, style.name, va="center", fontsize=7.5)


def _draw_chart(page: Page, left_in: float, top_in: float, chart: Chart, pair: Sequence[Chart]) -> None:
    """Charts side by side share the scale of their values, and those of memory have a logarithmic one."""
    axes = page.axes(left_in, top_in, PANEL_WIDTH_IN, PANEL_IN)
    axes.set_title(chart.title, fontsize=8)
    values = limits_of([spreads for each in pair for spreads in each.lines.values()])
    if chart.column == "peak_mib":
        log_axis(axes, "y", span(values[values > 0]))
        axes.set_ylabel("MiB above the inputs")
    else:
        axes.set_ylim(0, 1.06 * float(values.max()))
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axes.set_ylabel("TFLOP/s")
    seqs = sorted({seq for spreads in chart.lines.values() for seq in spreads})
    load_axis(axes, seqs, PANEL_WIDTH_IN, "sequence length (k = 1,024 tokens)")
    axes.xaxis.set_major_formatter(lambda seq, _: f"{seq / 1024:g}k" if seq >= 1024 else f"{seq:g}")
    axes.grid()
    for impl, spreads in chart.lines.items():
        draw_line(axes, STYLES[impl], spreads)


def _draw_decode(axes: Axes, panel: Panel) -> None:
    """A mark a shape: keys and values read once / (time x copy rate)."""
    axes.set_title(f"paged decode, D = {panel.head_dim}", fontsize=8)
    sizes = []
    for impl, at in panel.lines.items():
        for rows in at.values():
            share = of_values(row.roofline_share for row in rows)
            mib = float(f"{rows[0].gb_per_s * rows[0].ms * 1e6 / 2**20:.3g}")
            sizes.append(mib)
            axes.plot(mib, share.mean, linestyle="none", clip_on=False, **STYLES[impl].mark)
    load_axis(axes, sorted(set(sizes)), 2 * PANEL_WIDTH_IN + GAP_IN, "keys and values (MiB)")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g}")
    axes.set_ylabel("share of the copy rate (%)")
    axes.grid()
