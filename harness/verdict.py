"""VALID or INVALID, from the metrics of a cell and limits that were declared before it was measured.

A reason makes a cell INVALID; a note only tells the reader what to keep in mind. Both read
`code: what was seen against what was allowed`.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from harness.metrics import CellMetrics


class Limits(BaseModel):
    """Limits of a stage file, the same for every system of the stage."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min_window_s: float = Field(10.0, gt=0, description="shortest window, s")
    lag_p99_ms: float = Field(gt=0, description="the client's own lateness, 99th percentile, ms")
    min_headroom: float = Field(1.5, ge=1, description="client ceiling over observed events/s")
    low_headroom: float = Field(3.0, ge=1, description="below this, a note")
    min_sent_share: float = Field(
        0.95, gt=0, le=1, description="open loop: share of the window's requests sent in it"
    )
    littles_law_tolerance: float = Field(0.25, gt=0, description="beyond 1 +- (this + edges), a note")
    max_busy: float = Field(
        0.67,
        gt=0,
        le=1,
        description="share of a core a client process may use: above, it measures itself",
    )
    high_busy: float = Field(0.33, gt=0, le=1, description="above this, a note")
    max_halves_difference: float = Field(
        0.15, gt=0, description="tokens of the second half of the window against the first: beyond, a note"
    )
    max_stall_ms: float = Field(
        200, gt=0, description="longest time that a client process did not run when it was to, ms"
    )
    max_cached_share: float = Field(
        0.1, ge=0, le=1, description="prompt tokens from a prefix cache where prompts share no prefix"
    )


THROTTLED = {
    0x8: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}
"""Bits of NVML's clock event reasons that mean a GPU could not do what it does when cool and well fed
(nvmlClocksEventReason* in nvml.h)."""
POWER_CAPPED = 0x4


RULES = 3
"""Version of the rules below; a cell is judged by those it was measured under, so that `verify` can recompute
its row. 2: a cache that the server says nothing of is noted. 3: a growing queue does not widen the tolerance
of Little's law without limit, and windows whose halves differ are noted."""
WIDEST_EDGES = 0.1


@dataclass(frozen=True)
class Surroundings:
    """What the verdict needs besides the metrics.

    failure: why the server could not be measured at all, if so. ceiling_events_per_s: None when no ceiling
    was measured. correctness_identical: None when the stage checks none for this system. cached_tokens:
    prompt tokens from the prefix cache, by the server's counters or its answers, None when it does not say.
    shares_prefixes: the workload is made of prompts with common prefixes. client_stall_ms: None in older
    runs. client_busy: largest share of a core that a client process used; None in older runs.
    has_prefix_cache: the configuration has one, or may have.
    """

    failure: str | None
    open_loop: bool
    schedule_exhausted: bool
    ceiling_events_per_s: float | None
    correctness_identical: bool | None
    undeclared_gpu_processes: tuple[str, ...]
    cached_tokens: int | None = None
    shares_prefixes: bool = False
    throttle_reasons: int = 0
    client_stall_ms: float | None = None
    client_busy: float | None = None
    has_prefix_cache: bool = False
    rules: int = RULES


@dataclass(frozen=True)
class Verdict:
    reasons: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def valid(self) -> bool:
        return not self.reasons


def client_headroom(metrics: CellMetrics, ceiling_events_per_s: float | None) -> float | None:
    """Client ceiling over the events/s of the cell; None without a ceiling or without events."""
    if ceiling_events_per_s is None or metrics.events_per_s == 0:
        return None
    return ceiling_events_per_s / metrics.events_per_s


def judge(metrics: CellMetrics, limits: Limits, around: Surroundings) -> Verdict:
    """All reasons and notes of a cell, in a fixed order."""
    return Verdict(tuple(_reasons(metrics, limits, around)), tuple(_notes(metrics, limits, around)))


def _reasons(metrics: CellMetrics, limits: Limits, around: Surroundings) -> list[str]:
    if around.failure is not None:
        return [f"not_measured: {around.failure}"]
    reasons = []
    if metrics.window_s < limits.min_window_s:
        reasons.append(f"window_too_short: {metrics.window_s:g} s < {limits.min_window_s:g} s")
    if metrics.output_tokens == 0 or metrics.requests == 0:
        reasons.append("nothing_measured: no requests or no tokens in the window")
    failed = metrics.played_failed - metrics.mismatched
    if failed:
        reasons.append(f"failed_requests: {failed} of {metrics.played}")
    if metrics.mismatched:
        reasons.append(f"token_mismatch: {metrics.mismatched} of {metrics.played} requests")
    if metrics.lag_ms_p99 is not None and metrics.lag_ms_p99 > limits.lag_p99_ms:
        reasons.append(f"client_lag: p99 {metrics.lag_ms_p99:.3g} ms > {limits.lag_p99_ms:g} ms")
    if around.client_stall_ms is not None and around.client_stall_ms > limits.max_stall_ms:
        reasons.append(f"client_stalled: {around.client_stall_ms:.3g} ms > {limits.max_stall_ms:g} ms")
    if around.client_busy is not None and around.client_busy > limits.max_busy:
        reasons.append(f"client_busy: {around.client_busy:.2g} of a core > {limits.max_busy:g}")
    headroom = client_headroom(metrics, around.ceiling_events_per_s)
    if headroom is not None and headroom < limits.min_headroom:
        reasons.append(f"client_headroom: {headroom:.3g} < {limits.min_headroom:g}")
    if around.open_loop and _unsent(metrics) > max(1.0, (1 - limits.min_sent_share) * metrics.requests):
        reasons.append(
            f"rate_not_achieved: {metrics.sent_in_window} of {metrics.requests} requests sent in the window"
        )
    if around.schedule_exhausted:
        reasons.append(
            f"schedule_too_short: all of its {metrics.played} requests were sent before the time was over"
        )
    if around.correctness_identical is False:
        reasons.append("wrong_output: greedy output differs from the reference")
    if around.undeclared_gpu_processes:
        reasons.append(f"gpu_shared: {', '.join(around.undeclared_gpu_processes)}")
    if throttled := [name for bit, name in THROTTLED.items() if around.throttle_reasons & bit]:
        reasons.append(f"clocks_throttled: {', '.join(throttled)}")
    if around.cached_tokens and not around.shares_prefixes:
        share = around.cached_tokens / max(metrics.played_prompt_tokens, 1)
        if share > limits.max_cached_share:
            reasons.append(
                f"warm_cache: {share:.2g} of the prompt tokens came from a prefix cache > "
                f"{limits.max_cached_share:g}, and the prompts share none"
            )
    return reasons


def _notes(metrics: CellMetrics, limits: Limits, around: Surroundings) -> list[str]:
    notes = []
    headroom = client_headroom(metrics, around.ceiling_events_per_s)
    if headroom is not None and limits.min_headroom <= headroom < limits.low_headroom:
        notes.append(f"client_headroom_low: {headroom:.3g} < {limits.low_headroom:g}")
    if metrics.token_count_method == "assumed":
        notes.append("tokens_assumed: one token per event")
    if around.client_busy is not None and limits.high_busy < around.client_busy <= limits.max_busy:
        notes.append(f"client_rather_busy: {around.client_busy:.2g} of a core > {limits.high_busy:g}")
    if around.rules >= 2 and around.has_prefix_cache and around.cached_tokens is None:
        notes.append("cache_unknown: the server does not say what came from its prefix cache")
    if around.throttle_reasons & POWER_CAPPED:
        notes.append("power_capped: the GPU held its clock down to keep its power limit")
    ratio = metrics.littles_law_ratio
    edges = _edges(metrics) if around.rules < 3 else min(_edges(metrics), WIDEST_EDGES)
    if ratio is not None and abs(ratio - 1) > limits.littles_law_tolerance + edges:
        notes.append(f"not_steady: Little's law ratio {ratio:.3g}")
    halves = metrics.halves_ratio
    if around.rules >= 3 and halves is not None and abs(halves - 1) > limits.max_halves_difference:
        notes.append(f"halves_differ: tokens of the second half of the window / first {halves:.3g}")
    return notes


def _edges(metrics: CellMetrics) -> float:
    """How far requests that cross the edges of a window may move Little's law ratio in a steady state."""
    return metrics.mean_in_flight / metrics.requests if metrics.requests else 0.0


def _unsent(metrics: CellMetrics) -> int:
    """Requests due in the window but not sent in it. One may cross the edge of any window."""
    return metrics.requests - metrics.sent_in_window
