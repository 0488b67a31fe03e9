"""Greedy output against transformers: how long it stays the same, and how close a choice it parts at.

Left: share of prompts still identical after each number of tokens. Right: the reference's top-2 logit gap at
each first divergence against its position. A fault shows at large gaps, rounding at small ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator, PercentFormatter

from figures.format import count
from figures.page import Page
from figures.style import MUTED, SYSTEMS, SystemStyle
from harness.agreement import Agreement, by_system
from harness.schema import CorrectnessRow, ReferenceCheck
from harness.store import Run

PANEL_IN = 1.7
TITLE_IN = 0.3
AXIS_IN = 0.5
KEY_LINE_IN = 0.2
LEFT_IN, GAP_LEFT_IN, LEFT_PANEL_IN, GAP_PANEL_IN = 0.62, 4.1, 2.8, 2.85
# One unit in the last place of an fp32 logit of 16 to 32: closer ones cannot be told apart.
SMALLEST_GAP = 2e-6


@dataclass(frozen=True)
class Compared:
    """A system's answered rows, and the sums over all of its rows."""

    style: SystemStyle
    rows: pd.DataFrame
    sums: Agreement


def draw(run: Run) -> Figure | None:
    """The figure, or None for a run without teacher-forced rows."""
    table, check = run.correctness, run.manifest.reference_check
    if check is None or table["forced_tokens"].isna().all():
        return None
    sums = by_system(run.records(CorrectnessRow))
    shown = [
        Compared(SYSTEMS[system], table[(table["system"] == system) & table["error"].isna()], found)
        for system, found in sums.items()
    ]
    key_in = KEY_LINE_IN * len(shown)
    page = Page(
        run, "Agreement with transformers", key_in + TITLE_IN + PANEL_IN + AXIS_IN, notes(check, sums)
    )
    for number, compared in enumerate(shown):
        _draw_key(page.axes(LEFT_IN, KEY_LINE_IN * number, 6.3, KEY_LINE_IN), compared)
    identical = page.axes(LEFT_IN, key_in + TITLE_IN, LEFT_PANEL_IN, PANEL_IN)
    gaps = page.axes(GAP_LEFT_IN, key_in + TITLE_IN, GAP_PANEL_IN, PANEL_IN)
    for compared in shown:
        _draw_survival(identical, compared, check.max_tokens)
        _draw_gaps(gaps, compared)
    _finish_survival(identical, check.max_tokens)
    _finish_gaps(gaps, sum(len(found.gaps) for found in sums.values()), check.max_tokens)
    return page.figure


def notes(check: ReferenceCheck, sums: dict[str, Agreement]) -> list[str]:
    lines = [
        f"Systems in {check.system_dtype}; reference: greedy transformers "
        f"{check.packages['transformers']} in {check.dtype} ({check.attention}, one prompt at a time), "
        f"up to {check.max_tokens} new tokens.",
        "Teacher-forced: share of the reference's tokens that are the system's most likely ones, each after "
        "the reference's tokens before it.",
    ]
    failed = sum(found.failed for found in sums.values())
    return (
        [*lines, f"not drawn: prompts without an answer: {failed}, see correctness.csv"] if failed else lines
    )


def survival(rows: pd.DataFrame, max_tokens: int) -> np.ndarray:
    """Share of prompts whose first n tokens are the reference's, for n = 0 to max_tokens."""
    diverged = rows["first_divergence"].dropna().to_numpy(dtype=np.int64)
    lost = np.bincount(diverged + 1, minlength=max_tokens + 2)[: max_tokens + 1]
    return 1 - np.cumsum(lost) / len(rows)


def _draw_key(axes: Axes, compared: Compared) -> None:
    found = compared.sums
    axes.set_axis_off()
    axes.set_xlim(0, 6.3)
    axes.set_ylim(0, 1)
    axes.plot([0, 0.3], [0.5, 0.5], **compared.style.line)
    axes.plot(0.15, 0.5, **compared.style.mark)
    name = axes.text(0.38, 0.5, compared.style.name, va="center", fontweight="bold")
    text = f"{count(found.identical)} of {count(found.prompts)} prompts identical"
    if found.forced_share is not None:
        text += (
            f", teacher-forced {found.forced_share:.2%} "
            f"({count(found.forced_agree)} of {count(found.forced_tokens)} tokens)"
        )
    axes.annotate(text, (1, 0.5), (6, 0), xycoords=name, textcoords="offset points", va="center")


def _draw_survival(axes: Axes, compared: Compared, max_tokens: int) -> None:
    if compared.rows.empty:
        return
    share = survival(compared.rows, max_tokens)
    axes.step(np.arange(share.size), share, where="post", **compared.style.line)
    axes.plot(max_tokens, share[-1], clip_on=False, **compared.style.mark)


def _draw_gaps(axes: Axes, compared: Compared) -> None:
    known = compared.rows.dropna(subset=["gap_at_divergence"])
    if known.empty:
        return
    gaps = np.maximum(known["gap_at_divergence"].to_numpy(), SMALLEST_GAP)
    positions = known["first_divergence"].to_numpy(dtype=np.int64) + 1
    axes.plot(gaps, positions, linestyle="none", clip_on=False, **compared.style.mark)


def _finish_survival(axes: Axes, max_tokens: int) -> None:
    axes.set_title("prompts still identical")
    axes.set_xlim(0, max_tokens)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_xlabel("new tokens compared (tokens)")
    axes.set_ylim(0, 1.02)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=""))
    axes.set_ylabel("share of prompts (%)")
    axes.grid()


def _finish_gaps(axes: Axes, number: int, max_tokens: int) -> None:
    axes.set_title("first divergences")
    axes.set_title(f"n = {count(number)}", loc="right", fontsize=6.5, color=MUTED)
    axes.set_ylim(max_tokens + 0.5, 0)
    if number == 0:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.text(0.5, 0.5, "no prompt diverges", transform=axes.transAxes, ha="center", color=MUTED)
        return
    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    low, high = axes.get_xlim()
    axes.set_xlim(10 ** np.floor(np.log10(low)), 10 ** np.ceil(np.log10(high)))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_xlabel("reference's top-2 logit gap there (logits)")
    axes.set_ylabel("first differing token")
    axes.grid()
