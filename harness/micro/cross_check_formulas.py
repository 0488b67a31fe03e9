"""The medians and the throughput of two other clients, as pure functions of request rows.

Applied to the other client's rows they show that its formula is understood; applied to ours, how much of a
difference is the formula. Symbols, for one request: s send, f receipt of the first token, e receipt of the
last one, n output tokens; [t0, t1) the window of the play.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from harness.metrics import Window

HEADLINES = {
    "output_tokens_per_s": ("tokens/s", 0.03, "tokens received in [t0, t1) / (t1 - t0)"),
    "ttft_ms_p50": ("ms", 0.05, "f - q, nearest rank; q the scheduled send or the time the slot was free"),
    "tpot_ms_p50": ("ms", 0.05, "(e - f) / (n - tokens in the first event), nearest rank"),
}
"""Our metrics: unit, the largest relative difference that still counts as agreement, formula."""


@dataclass(frozen=True)
class Played:
    """What a client saw of one play. `requests` has the columns sent_ns, handed_ns (when the last byte of the
    request was with the kernel), first_ns, last_ns, done_ns, tokens and ok; times in ns from one origin, nan
    where there was none. `window` is the client's own; `whole` goes
    from the start of the play, which need not be the first send, to its end after the last answer."""

    requests: pd.DataFrame
    window: Window
    whole: Window

    def overlapping(self, start: str, end: str) -> pd.DataFrame:
        """Good requests that lie at least partly in the window, from one of their times to another."""
        rows = self.requests
        inside = (rows[end] >= self.window.start_ns) & (rows[start] <= self.window.end_ns)
        return rows[inside & rows["ok"]]


@dataclass(frozen=True)
class Formula:
    """A value as one client defines it; `headline` is our metric that it stands beside."""

    client: str
    metric: str
    headline: str
    text: str
    value: Callable[[Played], float]


def weighted_median(values: np.ndarray, weights: np.ndarray) -> float:
    """Nearest rank: the smallest value at or below which half of the weight lies. Raises ValueError for no
    values."""
    if len(values) == 0:
        raise ValueError("a median needs at least one value")
    order = np.argsort(values, kind="stable")
    cumulated = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(cumulated, cumulated[-1] / 2, side="left")])


def _ms(rows: pd.DataFrame, start: str, end: str) -> np.ndarray:
    return ((rows[end] - rows[start]) / 1e6).to_numpy(dtype=float)


def _several(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["tokens"] > 1]


def _aiperf_throughput(played: Played) -> float:
    rows = played.requests[played.requests["ok"]]
    return float(rows["tokens"].sum() / played.whole.seconds)


def _aiperf_ttft(played: Played) -> float:
    return float(np.median(_ms(played.requests[played.requests["ok"]], "sent_ns", "first_ns")))


def _aiperf_waiting(played: Played) -> float:
    return float(np.median(_ms(played.requests[played.requests["ok"]], "handed_ns", "first_ns")))


def _aiperf_itl(played: Played) -> float:
    rows = _several(played.requests[played.requests["ok"]])
    return float(np.median(_ms(rows, "first_ns", "last_ns") / (rows["tokens"] - 1)))


def _guidellm_throughput(played: Played) -> float:
    rows = played.requests.dropna(subset=["first_ns", "last_ns"])
    tokens = rows["tokens"].to_numpy(dtype=int)
    place = np.concatenate([np.linspace(0, 1, count) for count in tokens])
    first = np.repeat(rows["first_ns"].to_numpy(dtype=float), tokens)
    last = np.repeat(rows["last_ns"].to_numpy(dtype=float), tokens)
    at_ns = first + place * (last - first)
    inside = (at_ns >= played.window.start_ns) & (at_ns <= played.window.end_ns)
    return float(np.count_nonzero(inside) / played.window.seconds)


def _guidellm_ttft(played: Played) -> float:
    values = _ms(played.overlapping("sent_ns", "first_ns"), "sent_ns", "first_ns")
    return weighted_median(values, np.ones(len(values)))


def _guidellm_itl(played: Played) -> float:
    rows = _several(played.overlapping("first_ns", "done_ns"))
    weights = rows["tokens"].to_numpy(dtype=float) - 1
    return weighted_median(_ms(rows, "first_ns", "last_ns") / weights, weights)


def _guidellm_tpot(played: Played) -> float:
    rows = played.overlapping("sent_ns", "done_ns")
    weights = rows["tokens"].to_numpy(dtype=float)
    return weighted_median(_ms(rows, "sent_ns", "last_ns") / weights, weights)


FORMULAS = (
    Formula(
        "aiperf",
        "output_tokens_per_s",
        "output_tokens_per_s",
        "output_token_throughput = sum n / (end - start of its profiling phase), drain included",
        _aiperf_throughput,
    ),
    Formula(
        "aiperf",
        "ttft_ms_p50",
        "ttft_ms_p50",
        "time_to_first_token = f - s, median interpolated",
        _aiperf_ttft,
    ),
    Formula(
        "aiperf",
        "ttft_from_handed_ms_p50",
        "ttft_ms_p50",
        "http_req_waiting = f - when the request was written, its own making and sending left out",
        _aiperf_waiting,
    ),
    Formula(
        "aiperf",
        "tpot_ms_p50",
        "tpot_ms_p50",
        "inter_token_latency = (e - f) / (n - 1), median interpolated",
        _aiperf_itl,
    ),
    Formula(
        "guidellm",
        "output_tokens_per_s",
        "output_tokens_per_s",
        "output_tokens_per_second.total.mean = tokens in [t0, t1] / (t1 - t0), "
        "those of a request spaced evenly from f to e",
        _guidellm_throughput,
    ),
    Formula(
        "guidellm",
        "ttft_ms_p50",
        "ttft_ms_p50",
        "time_to_first_token_ms = f - s, nearest rank, s when the header is written",
        _guidellm_ttft,
    ),
    Formula(
        "guidellm",
        "tpot_ms_p50",
        "tpot_ms_p50",
        "inter_token_latency_ms = (e - f) / (n - 1), weighted by n - 1, nearest rank",
        _guidellm_itl,
    ),
    Formula(
        "guidellm",
        "tpot_with_first_ms_p50",
        "tpot_ms_p50",
        "time_per_output_token_ms = (e - s) / n: holds the TTFT; weighted by n, nearest rank",
        _guidellm_tpot,
    ),
)
"""Read in AIPerf 0.13.0 (metrics/types/; the description of benchmark_duration says max e - min s, but
metrics/metric_dicts.py takes the phase) and GuideLLM 0.8.1 (schemas/base/request_stats.py and statistics.py,
benchmark/schemas/metrics.py)."""


def turnaround_ms(played: Played, concurrency: int) -> float:
    """How long a slot of a closed loop stands empty between two requests, from e to the next s: mean over the
    window up to the last send, (slots x time - time in flight) / requests sent."""
    rows = played.requests.dropna(subset=["sent_ns", "last_ns"])
    start, end = played.window.start_ns, min(played.window.end_ns, rows["sent_ns"].max())
    in_flight = rows["last_ns"].clip(start, end) - rows["sent_ns"].clip(start, end)
    sent = ((rows["sent_ns"] >= start) & (rows["sent_ns"] < end)).sum()
    return float((concurrency * (end - start) - in_flight.sum()) / sent / 1e6)


def service_ms(played: Played) -> float:
    """Mean e - s of the good requests of the window."""
    return float(np.mean(_ms(played.overlapping("sent_ns", "last_ns"), "sent_ns", "last_ns")))


def mean_ttft_ms(played: Played) -> float:
    """Mean f - s of the good requests of the window."""
    return float(np.mean(_ms(played.overlapping("sent_ns", "last_ns"), "sent_ns", "first_ns")))


def mean_tpot_ms(played: Played) -> float:
    """Mean (e - f) / (n - 1) of the good requests of the window."""
    rows = _several(played.overlapping("sent_ns", "last_ns"))
    return float(np.mean(_ms(rows, "first_ns", "last_ns") / (rows["tokens"] - 1)))


def with_turnaround(tokens_per_s: float, service: float, own: float, other: float) -> float:
    """What a closed loop would reach if its slots stood empty as long as those of another client: a slot's
    cycle is service + turnaround, all in ms."""
    return tokens_per_s * (service + own) / (service + other)


def true_values(
    ttft_ms: float, tpot_ms: float, tokens: int, *, concurrency: int | None, rate_rps: float | None
) -> Mapping[str, float]:
    """What a client without any cost of its own would find on a paced server, by metric."""
    answer_ms = ttft_ms + (tokens - 1) * tpot_ms
    per_s = rate_rps * tokens if concurrency is None else concurrency * tokens / answer_ms * 1e3
    return {
        "output_tokens_per_s": per_s,
        "ttft_ms_p50": ttft_ms,
        "ttft_from_handed_ms_p50": ttft_ms,
        "tpot_ms_p50": tpot_ms,
        "tpot_with_first_ms_p50": answer_ms / tokens,
    }


def within(ratio: float, limit: float) -> bool:
    """Whether two values agree: their ratio lies in [1 - limit, 1 + limit]; nan does not."""
    return 1 - limit <= ratio <= 1 + limit
