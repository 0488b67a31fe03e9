"""Open loops: the statistics of random arrivals, the exactness of the others."""

import itertools
import statistics
from fractions import Fraction

import pytest

from harness.workload.arrivals import arrivals_ns, mean_rate_rps, replayed
from harness.workload.checks import ScheduleError
from harness.workload.declared import BurstsLoad, ConstantLoad, GammaLoad, PoissonLoad, StepsLoad, TraceLoad
from harness.workload.recorded import Row

S = 10**9


def gaps(arrivals: list[int]) -> list[int]:
    return [later - earlier for earlier, later in itertools.pairwise(arrivals)]


def variation(values: list[int]) -> float:
    return statistics.stdev(values) / statistics.mean(values)


def dispersion(arrivals: list[int], seconds: int) -> float:
    """Variance / mean of the counts per second: 1 for Poisson, with deviation sqrt(2 / (seconds - 1))."""
    counts = [0] * seconds
    for due_ns in arrivals:
        counts[due_ns // S] += 1
    return statistics.variance(counts) / statistics.mean(counts)


@pytest.fixture(scope="module")
def poisson_arrivals() -> list[int]:
    return arrivals_ns(PoissonLoad(rate_rps=40), seed=5, duration_ns=500 * S)


def test_poisson_counts_are_as_dispersed_as_poisson(poisson_arrivals: list[int]) -> None:
    assert abs(dispersion(poisson_arrivals, 500) - 1) < 4 * (2 / 499) ** 0.5


def test_eight_clients_that_take_turns_are_one_poisson_process_together(poisson_arrivals: list[int]) -> None:
    """Client w sends requests w, w + 8, …: its own gaps are sums of eight exponential ones (CV 1 / sqrt(8)),
    and only all together are Poisson, which a client that drew its own gaps at rate / 8 would be, too."""
    shares = [poisson_arrivals[client::8] for client in range(8)]
    together = sorted(itertools.chain.from_iterable(shares))
    assert abs(dispersion(together, 500) - 1) < 4 * (2 / 499) ** 0.5
    for share in shares:
        assert abs(len(share) - len(poisson_arrivals) / 8) < 1
        assert abs(variation(gaps(share)) - 8**-0.5) < 0.03


@pytest.mark.parametrize(("cv", "tolerance"), [(0.25, 0.01), (1.0, 0.04), (2.0, 0.15), (4.0, 0.6)])
def test_gamma_gaps_have_the_rate_and_variation_asked(cv: float, tolerance: float) -> None:
    arrivals = arrivals_ns(GammaLoad(rate_rps=10, cv=cv), seed=3, duration_ns=400 * S)
    assert arrivals == sorted(arrivals)
    assert abs(len(arrivals) - 4_000) < 4 * cv * 4_000**0.5
    assert abs(variation(gaps(arrivals)) - cv) < tolerance


def test_gamma_of_variation_one_is_exponential() -> None:
    found = gaps(arrivals_ns(GammaLoad(rate_rps=10, cv=1), seed=4, duration_ns=800 * S))
    for multiple, share in ((0.1, 0.0952), (0.5, 0.3935), (1.0, 0.6321), (3.0, 0.9502)):
        assert abs(sum(gap <= multiple * S / 10 for gap in found) / len(found) - share) < 0.02


def test_constant_arrivals_are_exact_and_absolute() -> None:
    arrivals = arrivals_ns(ConstantLoad(rate_rps=0.7), seed=1, duration_ns=3_600 * S)
    assert arrivals == [round(Fraction(10 * S * place, 7)) for place in range(2_520)]
    assert arrivals[7 * 300] == 3_000 * S  # rounding 1428571428.57 each time would be 900 ns off by here
    assert set(gaps(arrivals)) == {1_428_571_428, 1_428_571_429}


def test_an_arrival_at_the_end_is_outside() -> None:
    assert arrivals_ns(ConstantLoad(rate_rps=4), seed=1, duration_ns=S) == [0, S // 4, S // 2, 3 * S // 4]


def test_bursts_come_at_once_and_keep_the_rate() -> None:
    arrivals = arrivals_ns(BurstsLoad(rate_rps=8, size=4), seed=1, duration_ns=10 * S)
    assert arrivals == [burst * S // 2 for burst in range(20) for _ in range(4)]


def test_steps_have_each_their_rate_and_then_end() -> None:
    load = StepsLoad(rates_rps=(5, 40, 10), step_s=200)
    arrivals = arrivals_ns(load, seed=2, duration_ns=601 * S)
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] < 600 * S
    for step, rate_rps in enumerate(load.rates_rps):
        expected = rate_rps * 200
        found = [due_ns for due_ns in arrivals if step * 200 * S <= due_ns < (step + 1) * 200 * S]
        assert abs(len(found) - expected) < 4 * expected**0.5
        assert abs(variation(gaps(found)) - 1) < 5 / expected**0.5
    assert mean_rate_rps(load) == 55 / 3


@pytest.mark.parametrize(
    "load", [PoissonLoad(rate_rps=3), GammaLoad(rate_rps=3, cv=2), ConstantLoad(rate_rps=3)]
)
def test_a_longer_play_begins_like_a_shorter_one(load) -> None:
    short, long = (arrivals_ns(load, seed=9, duration_ns=seconds * S) for seconds in (20, 40))
    assert long[: len(short)] == short
    assert arrivals_ns(load, seed=9, duration_ns=20 * S) == short


ROWS = tuple(Row(due_ns, 1, 1) for due_ns in (0, 1, 3 * S, 3 * S, 4 * S + 100, 9 * S))


@pytest.mark.parametrize(
    ("speed", "start_s", "seconds", "due"),
    [
        (1, 0, 9, [0, 1, 3 * S, 3 * S, 4 * S + 100]),
        (1, 0, 9.000000001, [0, 1, 3 * S, 3 * S, 4 * S + 100, 9 * S]),
        (2, 0, 2, [0, 0, 3 * S // 2, 3 * S // 2]),
        (0.1, 0, 41, [0, 10, 30 * S, 30 * S, 40 * S + 1_000]),
        (3, 3, 10, [0, 0, 333_333_367, 2 * S]),
        (1, 3.5, 10, [S // 2 + 100, 5 * S + S // 2]),
    ],
)
def test_a_trace_is_scaled_exactly(speed: float, start_s: float, seconds: float, due: list[int]) -> None:
    load = TraceLoad(trace="azure_conv", speed=speed, start_s=start_s)
    assert [row.arrival_ns for row in replayed(ROWS, load, round(seconds * S))] == due


@pytest.mark.parametrize(
    ("load", "seconds", "named"),
    [
        (PoissonLoad(rate_rps=1e6), 3_600, "asks for 3600000000 requests, more than 10000000"),
        (BurstsLoad(rate_rps=1e6, size=10), 3_600, "more than 10000000"),
        (PoissonLoad(rate_rps=1e-6), 1, "no request arrives within duration_s 1 at rate_rps 1e-06"),
        (StepsLoad(rates_rps=(1, 2), step_s=5), 9, "2 steps of step_s 5 take 10 s, more than the 9 s played"),
    ],
)
def test_loads_that_do_not_fit_the_play_are_refused(load, seconds: int, named: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        arrivals_ns(load, seed=1, duration_ns=seconds * S)
    assert named in str(caught.value)
