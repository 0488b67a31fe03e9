"""When requests of an open loop are due: whole ns from the start of play, in order."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from fractions import Fraction

from harness.workload.checks import MAX_REQUESTS, ScheduleError
from harness.workload.declared import BurstsLoad, ConstantLoad, GammaLoad, PoissonLoad, StepsLoad, TraceLoad
from harness.workload.recorded import Row
from harness.workload.streams import NS_PER_S, exactly, exponential_ns, gamma_ns, named_stream, to_ns

MadeArrivals = PoissonLoad | GammaLoad | ConstantLoad | BurstsLoad | StepsLoad


def mean_rate_rps(load: MadeArrivals) -> float:
    """Mean requests/s offered; for steps the mean of their rates, each holding equally long."""
    if isinstance(load, StepsLoad):
        return float(sum(map(exactly, load.rates_rps)) / len(load.rates_rps))
    return load.rate_rps


def arrivals_ns(load: MadeArrivals, seed: int, duration_ns: int) -> list[int]:
    """Every arrival in [0, duration_ns); never rescaled to meet the rate: random gaps make the number of
    arrivals vary with the seed. Random ones come from the stream "arrivals".

    Raises ScheduleError for more than MAX_REQUESTS, none at all, or steps that take longer than the play.
    """
    expected = exactly(mean_rate_rps(load)) * duration_ns / NS_PER_S
    if expected > MAX_REQUESTS:
        raise ScheduleError(
            f"rate_rps {mean_rate_rps(load):g} for duration_s {duration_ns / NS_PER_S:g} asks for "
            f"{float(expected):.0f} requests, more than {MAX_REQUESTS}"
        )
    arrivals = list(_arrivals(load, named_stream(seed, "arrivals"), duration_ns))
    if not arrivals:
        raise ScheduleError(
            f"no request arrives within duration_s {duration_ns / NS_PER_S:g} "
            f"at rate_rps {mean_rate_rps(load):g}, seed {seed}"
        )
    return arrivals


def replayed(rows: tuple[Row, ...], load: TraceLoad, duration_ns: int) -> list[Row]:
    """The rows of a trace that arrive in the play: due at (recorded - start) / speed, rounded to whole ns."""
    start_ns, speed = to_ns(load.start_s), exactly(load.speed)
    later = (row for row in rows if row.arrival_ns >= start_ns)
    due = (row._replace(arrival_ns=round((row.arrival_ns - start_ns) / speed)) for row in later)
    return list(itertools.takewhile(lambda row: row.arrival_ns < duration_ns, due))


def _arrivals(load: MadeArrivals, stream: random.Random, duration_ns: int) -> Iterator[int]:
    match load:
        case PoissonLoad():
            return _renewals(lambda: exponential_ns(stream, load.rate_rps), 0, duration_ns)
        case GammaLoad():
            return _renewals(lambda: gamma_ns(stream, load.rate_rps, load.cv), 0, duration_ns)
        case ConstantLoad():
            return _spaced(1 / exactly(load.rate_rps), 1, duration_ns)
        case BurstsLoad():
            return _spaced(load.size / exactly(load.rate_rps), load.size, duration_ns)
        case StepsLoad():
            return _steps(load, stream, duration_ns)


def _renewals(gap_ns: Callable[[], int], start_ns: int, end_ns: int) -> Iterator[int]:
    due_ns = start_ns + gap_ns()
    while due_ns < end_ns:
        yield due_ns
        due_ns += gap_ns()


def _spaced(gap_s: Fraction, size: int, duration_ns: int) -> Iterator[int]:
    """`size` arrivals each at the whole ns nearest to i * gap_s: absolute, so that no rounding adds up."""
    for place in itertools.count():
        due_ns = round(place * gap_s * NS_PER_S)
        if due_ns >= duration_ns:
            return
        yield from itertools.repeat(due_ns, size)


def _steps(load: StepsLoad, stream: random.Random, duration_ns: int) -> Iterator[int]:
    edges_ns = [round(exactly(load.step_s) * NS_PER_S * step) for step in range(len(load.rates_rps) + 1)]
    if edges_ns[-1] > duration_ns:
        raise ScheduleError(
            f"{len(load.rates_rps)} steps of step_s {load.step_s:g} take {edges_ns[-1] / NS_PER_S:g} s, "
            f"more than the {duration_ns / NS_PER_S:g} s played"
        )
    for rate_rps, (start_ns, end_ns) in zip(load.rates_rps, itertools.pairwise(edges_ns), strict=True):
        yield from _renewals(lambda rate_rps=rate_rps: exponential_ns(stream, rate_rps), start_ns, end_ns)
