"""Every number of a summary row as a pure function of raw rows.

Symbols, for one request: q intended send (closed loop: when its slot became free), s actual send, f receipt
of the first event with a generated token, e receipt of the last one, n generated tokens, k tokens in the
first event. The window is [t0, t1): after the ramp, before the drain. A request counts when q lies in it.

Where the definitions come from: latency from q and +inf for failures after MLPerf LoadGen (loadgen.cc,
results.cc); throughput by tokens received in a declared window, after GuideLLM's and SGLang's steady-state
windows; (e - f) / (n - k) after AIPerf's correction for several tokens in the first chunk.

`requests`, `events` and `received` are the tables of one cell with the columns of schema.RequestRow,
schema.EventRow (the events of a request in order of receipt; of some requests only where there are many) and
schema.ReceivedRow (all events, counted in spans of RECEIVED_BIN_MS; edges of windows lie between spans).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from harness.schema import RECEIVED_BIN_MS, ReceivedRow
from harness.tables import dtypes

MIN_REQUESTS_FOR_P99 = 662
"""p99 is given from this many values on: the least n for which at most one value above the true 99th
percentile has a probability under 1 % (0.99^n + n 0.01 0.99^(n-1) <= 0.01), MLPerf's early-stopping bound at
99 % confidence."""

NS_PER_MS = 1e6
NS_PER_S = 1e9


@dataclass(frozen=True)
class Window:
    """Measured part [start_ns, end_ns) of a play, in ns from the start of play."""

    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / NS_PER_S

    def contains(self, times_ns: np.ndarray) -> np.ndarray:
        return (times_ns >= self.start_ns) & (times_ns < self.end_ns)


@dataclass(frozen=True)
class Slo:
    """Limits a good request keeps, in ms; None leaves that latency out."""

    ttft_ms: float | None
    tpot_ms: float | None


@dataclass(frozen=True)
class CellMetrics:
    """What one cell amounts to; the meaning of each field stands in schema.ServingRow."""

    requests: int
    failed: int
    played: int
    played_failed: int
    mismatched: int
    prompt_tokens: int
    played_prompt_tokens: int
    played_cached_tokens: int | None
    cached_tokens: int | None
    output_tokens: int
    window_s: float
    output_tokens_per_s: float
    requests_per_s: float
    ttft_ms_p50: float | None
    ttft_ms_p99: float | None
    tpot_ms_p50: float | None
    tpot_ms_p99: float | None
    e2e_ms_p50: float | None
    e2e_ms_p99: float | None
    ttft_from_send_ms_p50: float | None
    attainment: float | None
    goodput_rps: float | None
    events_per_token: float | None
    events_per_s: float
    token_count_method: str
    lag_ms_p99: float | None
    sent_in_window: int
    mean_in_flight: float
    littles_law_ratio: float | None
    halves_ratio: float | None
    icl_ms_p50: float | None
    icl_ms_p99: float | None


def _column(rows: pd.DataFrame, name: str) -> np.ndarray:
    """A column as float64, empty cells as nan. Exact for times below 2^53 ns (104 days)."""
    return rows[name].to_numpy(dtype=np.float64, na_value=np.nan)


def succeeded(requests: pd.DataFrame) -> np.ndarray:
    """Which requests ended exactly as asked."""
    return (requests["status"] == "ok").to_numpy(dtype=bool)


def _infinite_where_failed(values: np.ndarray, requests: pd.DataFrame) -> np.ndarray:
    return np.where(succeeded(requests), values, np.inf)


def ttft_ms(requests: pd.DataFrame) -> np.ndarray:
    """Time to first token f - q in ms, from the scheduled time as in MLPerf; +inf for a failed request."""
    return _infinite_where_failed(
        (_column(requests, "first_ns") - _column(requests, "intended_ns")) / NS_PER_MS, requests
    )


def ttft_from_send_ms(requests: pd.DataFrame) -> np.ndarray:
    """f - s in ms, what most clients call TTFT; +inf for a failed request. Diagnostic only."""
    return _infinite_where_failed(
        (_column(requests, "first_ns") - _column(requests, "sent_ns")) / NS_PER_MS, requests
    )


def e2e_ms(requests: pd.DataFrame) -> np.ndarray:
    """e - q in ms, up to the last token and not to the close of the stream; +inf for a failed request."""
    return _infinite_where_failed(
        (_column(requests, "last_ns") - _column(requests, "intended_ns")) / NS_PER_MS, requests
    )


def tpot_ms(requests: pd.DataFrame) -> np.ndarray:
    """Time per output token (e - f) / (n - k) in ms; nan when n <= k, +inf for a failed request.

    Dividing by n - k, and not by n - 1, keeps a first event with several tokens from looking like speed.
    """
    later_tokens = _column(requests, "output_tokens") - _column(requests, "first_event_tokens")
    span_ms = (_column(requests, "last_ns") - _column(requests, "first_ns")) / NS_PER_MS
    per_token = np.divide(span_ms, later_tokens, out=np.full_like(span_ms, np.nan), where=later_tokens > 0)
    return _infinite_where_failed(per_token, requests)


def lag_ms(requests: pd.DataFrame) -> np.ndarray:
    """s - q in ms: how late the client itself was; nan for a request that was never sent.

    Such a request failed, and is counted as that: its connection was refused, or the turn before it failed.
    """
    return (_column(requests, "sent_ns") - _column(requests, "intended_ns")) / NS_PER_MS


def percentile(values: np.ndarray, percent: float) -> float | None:
    """Nearest rank: the smallest value with at least `percent` % of all values at or below it.

    nan (undefined) is left out, +inf (failed) is counted; None without values. No interpolation, so the
    result is a time that was really seen.
    """
    defined = np.sort(values[~np.isnan(values)])
    if defined.size == 0:
        return None
    rank = math.ceil(percent / 100 * defined.size)
    return float(defined[max(rank, 1) - 1])


def p99(values: np.ndarray) -> float | None:
    """99th percentile by nearest rank, None below MIN_REQUESTS_FOR_P99 defined values."""
    if np.count_nonzero(~np.isnan(values)) < MIN_REQUESTS_FOR_P99:
        return None
    return percentile(values, 99)


def event_times_ns(requests: pd.DataFrame, events: pd.DataFrame) -> np.ndarray:
    """Receipt of each event in ns from the start of play, rounded down to whole microseconds."""
    if events.empty:
        return np.empty(0)
    since_intended = events.groupby("request", sort=False)["gap_us"].cumsum().to_numpy(dtype=np.int64)
    intended_us = requests.set_index("request")["intended_ns"].astype("int64") // 1000
    return (events["request"].map(intended_us).to_numpy(dtype=np.int64) + since_intended) * 1000


def received_from_events(requests: pd.DataFrame, events: pd.DataFrame) -> pd.DataFrame:
    """The received table that a cell without one would have, from the events of all of its requests."""
    span_ns = RECEIVED_BIN_MS * 1_000_000
    at_ns = event_times_ns(requests, events).astype(np.int64)
    arrived = pd.DataFrame(
        {
            "t_ms": at_ns // span_ns * RECEIVED_BIN_MS,
            "read": pd.Series(list(zip(events["request"], at_ns, strict=True)), dtype=object),
            "tokens": events["tokens"].to_numpy(dtype=np.int64),
        }
    )
    spans = arrived.groupby("t_ms", sort=True).agg(
        events=("tokens", "size"), reads=("read", "nunique"), tokens=("tokens", "sum")
    )
    frame = spans.reset_index().assign(cell=events["cell"].iloc[0] if len(events) else None)
    return frame.astype(dtypes(ReceivedRow))[list(dtypes(ReceivedRow))]


def icl_ms(requests: pd.DataFrame, events: pd.DataFrame) -> np.ndarray:
    """Inter-chunk latency: each gap between two events of the given requests that carried tokens, in ms.

    A gap belongs to an event, not to a token: where events carry several tokens it is no latency per token
    (the column called ITL elsewhere mixes both).
    """
    later = events.duplicated("request") & events["request"].isin(requests["request"])
    return events["gap_us"].to_numpy(dtype=np.float64)[later.to_numpy()] / 1000


def good(requests: pd.DataFrame, slo: Slo) -> np.ndarray:
    """Which requests kept every limit. A failed one did not; one whose TPOT is undefined kept that limit only
    when a single token was asked for (all tokens in one late event must not pass as infinitely fast)."""
    kept = succeeded(requests)
    if slo.ttft_ms is not None:
        kept = kept & (ttft_ms(requests) <= slo.ttft_ms)
    if slo.tpot_ms is not None:
        tpot = tpot_ms(requests)
        single = _column(requests, "requested_tokens") == 1
        kept = kept & np.where(np.isnan(tpot), single, tpot <= slo.tpot_ms)
    return kept


def ended_ns(requests: pd.DataFrame) -> np.ndarray:
    """End of each request's stay: its last token, or for a failed one the end of the attempt."""
    return np.where(succeeded(requests), _column(requests, "last_ns"), _column(requests, "done_ns"))


def mean_in_flight(requests: pd.DataFrame, window: Window) -> float:
    """Requests between q and their end, averaged over the window (time integral / window)."""
    start = np.clip(_column(requests, "intended_ns"), window.start_ns, window.end_ns)
    end = np.clip(ended_ns(requests), window.start_ns, window.end_ns)
    return float(np.nansum(np.maximum(end - start, 0)) / (window.end_ns - window.start_ns))


def littles_law_ratio(requests: pd.DataFrame, window: Window) -> float | None:
    """Mean in flight over (arrival rate x mean time in system) of the requests that arrived in the window.

    Little's law makes it 1 in a steady state; over a finite window it differs by the edges, about
    in flight / requests. Far from 1: the window is not steady (a growing queue), or the rows are wrong.
    """
    arrived = window.contains(_column(requests, "intended_ns"))
    stay_ns = (ended_ns(requests) - _column(requests, "intended_ns"))[arrived]
    expected = np.nansum(stay_ns) / (window.end_ns - window.start_ns)
    return mean_in_flight(requests, window) / float(expected) if expected > 0 else None


def joules(gpu_samples: pd.DataFrame, window: Window) -> float | None:
    """Energy of all GPUs over the window in J: the driver's counter, interpolated at t0 and t1.

    None unless every GPU has readings before t0 and at or after t1.
    """
    total = 0.0
    counted = gpu_samples.dropna(subset=["energy_mj"])
    for _, readings in counted.groupby("gpu"):
        times, energy = _column(readings, "t_ns"), _column(readings, "energy_mj")
        if times[0] > window.start_ns or times[-1] < window.end_ns:
            return None
        at_start, at_end = np.interp([window.start_ns, window.end_ns], times, energy)
        total += float(at_end - at_start) / 1000
    return total if len(counted) else None


def halves_ratio(received: pd.DataFrame, window: Window) -> float | None:
    """Tokens received in the second half of a window over those of its first half; None without any there."""
    middle_ms = (window.start_ns + window.end_ns) / 2 / NS_PER_MS
    in_first = received["t_ms"] < middle_ms
    first, second = int(received[in_first]["tokens"].sum()), int(received[~in_first]["tokens"].sum())
    return second / first if first else None


@dataclass(frozen=True)
class GpuState:
    """The GPUs over a window; None where the driver does not say."""

    sm_clock_mhz_mean: float | None
    temperature_c_max: float | None
    throttle_reasons: int


def gpu_state(gpu_samples: pd.DataFrame, window: Window) -> GpuState:
    """Mean clock, highest temperature, and every bit of the throttle reasons, of all readings in a window."""
    seen = gpu_samples[window.contains(_column(gpu_samples, "t_ns"))]
    clock, temperature = seen["sm_clock_mhz"].dropna(), seen["temperature_c"].dropna()
    reasons = 0
    for bits in seen["throttle_reasons"].dropna():
        reasons |= int(bits)
    return GpuState(
        sm_clock_mhz_mean=float(clock.mean()) if len(clock) else None,
        temperature_c_max=float(temperature.max()) if len(temperature) else None,
        throttle_reasons=reasons,
    )


def _single_or_mixed(methods: pd.Series) -> str:
    distinct = sorted(set(methods.dropna()))
    return distinct[0] if len(distinct) == 1 else "mixed" if distinct else "none"


def cell_metrics(
    requests: pd.DataFrame, events: pd.DataFrame, received: pd.DataFrame, window: Window, slo: Slo
) -> CellMetrics:
    """All metrics of one cell.

    Output throughput = tokens received in [t0, t1) / (t1 - t0), from all events, those of failed and of
    unfinished requests included: they were generated and received. Latencies, attainment and goodput run over
    every request that was to be sent in the window, whenever it ended.
    """
    counted = requests[window.contains(_column(requests, "intended_ns"))]
    in_window = received[window.contains(_column(received, "t_ms") * NS_PER_MS)]
    output_tokens, event_count = int(in_window["tokens"].sum()), int(in_window["events"].sum())
    ended_well = succeeded(requests) & window.contains(ended_ns(requests))
    kept = good(counted, slo)
    judged = len(counted) > 0 and (slo.ttft_ms is not None or slo.tpot_ms is not None)
    ttft, tpot, e2e = ttft_ms(counted), tpot_ms(counted), e2e_ms(counted)
    gaps_ms = icl_ms(counted, events)
    reports_cache = counted["cached_tokens"].notna().any()
    return CellMetrics(
        requests=len(counted),
        failed=int((~succeeded(counted)).sum()),
        played=len(requests),
        played_failed=int((~succeeded(requests)).sum()),
        mismatched=int((requests["status"] == "mismatch").sum()),
        prompt_tokens=int(np.nansum(_column(counted, "prompt_tokens"))),
        played_prompt_tokens=int(np.nansum(_column(requests, "prompt_tokens"))),
        played_cached_tokens=int(np.nansum(_column(requests, "cached_tokens"))) if reports_cache else None,
        cached_tokens=int(np.nansum(_column(counted, "cached_tokens"))) if reports_cache else None,
        output_tokens=output_tokens,
        window_s=window.seconds,
        output_tokens_per_s=output_tokens / window.seconds,
        requests_per_s=int(ended_well.sum()) / window.seconds,
        ttft_ms_p50=percentile(ttft, 50),
        ttft_ms_p99=p99(ttft),
        tpot_ms_p50=percentile(tpot, 50),
        tpot_ms_p99=p99(tpot),
        e2e_ms_p50=percentile(e2e, 50),
        e2e_ms_p99=p99(e2e),
        ttft_from_send_ms_p50=percentile(ttft_from_send_ms(counted), 50),
        attainment=float(kept.mean()) if judged else None,
        goodput_rps=int(kept.sum()) / window.seconds if judged else None,
        events_per_token=event_count / output_tokens if output_tokens else None,
        events_per_s=event_count / window.seconds,
        token_count_method=_single_or_mixed(requests["token_count_method"]),
        lag_ms_p99=percentile(lag_ms(counted), 99),
        sent_in_window=int(window.contains(_column(counted, "sent_ns")).sum()),
        mean_in_flight=mean_in_flight(requests, window),
        littles_law_ratio=littles_law_ratio(requests, window),
        halves_ratio=halves_ratio(in_window, window),
        icl_ms_p50=percentile(gaps_ms, 50),
        icl_ms_p99=p99(gaps_ms),
    )
