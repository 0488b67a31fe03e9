"""The README table of a run of the stage `attention`: causal TFLOP/s by implementation and length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from figures.attention import STYLES
from figures.format import UNDEFINED, three_digits
from figures.runs import describe_machine, describe_origin
from harness.attention.summary import Panel, panels
from harness.schema import AttentionRow
from harness.store import Run

SWEEP = "causal"


def attention_table(run: Run) -> str:
    """Markdown, ending in a newline; numbers of VALID rows only."""
    rows = run.records(AttentionRow)
    found = panels(rows)
    forward = {panel.head_dim: panel for panel in _of(found, "forward")}
    backward = {panel.head_dim: panel for panel in _of(found, "backward")}
    seqs = sorted({seq for panel in [*forward.values(), *backward.values()] for _, seq in panel.shapes})
    head = ["head size, implementation", *(f"{seq:,}" for seq in seqs)]
    body = [
        [f"{dim}, {STYLES[impl].name}", *(_cell(forward[dim], backward[dim], impl, seq) for seq in seqs)]
        for dim in sorted(forward.keys() & backward.keys(), reverse=True)
        for impl in STYLES
        if impl in forward[dim].lines or impl in backward[dim].lines
    ]
    rule = ["---", *["---:"] * len(seqs)]
    described = "; ".join([rows[0].dtype, describe_machine(run.manifest), describe_origin(run)])
    return (
        "\n".join(
            [
                f"{described}.",
                "",
                _said(rows, found),
                "",
                *(f"| {' | '.join(row)} |" for row in [head, rule, *body]),
            ]
        )
        + "\n"
    )


def _of(found: Sequence[Panel], direction: str) -> list[Panel]:
    return [panel for panel in found if (panel.sweep, panel.direction) == (SWEEP, direction)]


def _cell(forward: Panel, backward: Panel, impl: str, seq: int) -> str:
    values = []
    for panel in (forward, backward):
        shape = next((shape for shape in panel.shapes if shape[1] == seq), None)
        mean = panel.mean(impl, shape, "tflops") if shape and impl in panel.lines else None
        values.append(three_digits(mean))
    return UNDEFINED if set(values) == {UNDEFINED} else " / ".join(values)


def _said(rows: Sequence[AttentionRow], found: Sequence[Panel]) -> str:
    said = [
        "Causal attention, TFLOP/s forward / backward (backward credited 2.5 times the forward) by sequence "
        "length, geometric mean of the repetitions. "
        f"In the same run a square matmul reached {three_digits(rows[0].matmul_tflops)} TFLOP/s.",
        *_packed(found),
        *_decode(found),
    ]
    return " ".join(said)


def _packed(found: Sequence[Panel]) -> Iterator[str]:
    """Ours on sequences of different lengths over ours on equal ones of the same work."""
    ratios = []
    for panel in found:
        if panel.sweep != "packed":
            continue
        tflops: dict[bool, float | None] = {}
        for shape, rows in panel.lines.get("triton", {}).items():
            tflops[bool(rows[0].lengths)] = panel.mean("triton", shape, "tflops")
        if all(tflops.get(is_packed) for is_packed in (True, False)):
            ratios.append(f"{panel.direction} {tflops[True] / tflops[False]:.0%}")
    if ratios:
        yield f"Packed sequences of many lengths against equal ones of the same work: {', '.join(ratios)}."


def _decode(found: Sequence[Panel]) -> Iterator[str]:
    """The most of the copy rate that our paged decode reaches."""
    shares = [
        (rows[0].roofline_share, shape)
        for panel in found
        if panel.direction == "decode"
        for shape, rows in panel.lines.get("triton", {}).items()
    ]
    if shares:
        share, (batch, seq) = max(shares)
        yield f"Paged decode reaches {share:.0%} of the copy rate at {batch} x {seq:,} tokens."
