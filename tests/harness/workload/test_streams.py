"""Random streams: independent by name, exact ranges, exponential gaps by inversion."""

import math
import random

from harness.workload.streams import exponential_ns, named_stream, shuffle, uniform_int


class Fixed(random.Random):
    """A stream that returns what the test says."""

    def __init__(self, *values: float) -> None:
        self._values = list(values)

    def random(self) -> float:
        return self._values.pop(0)


def test_a_stream_depends_on_seed_and_name_only() -> None:
    def draws(seed: int, name: str) -> tuple[float, ...]:
        stream = named_stream(seed, name)
        return tuple(stream.random() for _ in range(4))

    assert len({draws(seed, name) for seed in (0, 1) for name in ("arrivals", "lengths")}) == 4
    assert draws(0, "lengths") == draws(0, "lengths")


def test_known_draws() -> None:
    """The values themselves are part of the promise, not only that they repeat within a process."""
    assert named_stream(7, "lengths").random().hex() == "0x1.a3f335653fca9p-1"


def test_uniform_int_reaches_both_ends_and_nothing_else() -> None:
    largest = 1 - 2**-53
    assert uniform_int(Fixed(0.0), 3, 5) == 3
    assert uniform_int(Fixed(largest), 3, 5) == 5
    assert uniform_int(Fixed(largest), 4, 4) == 4
    stream = named_stream(1, "test")
    counts = [0] * 6
    for _ in range(6_000):
        counts[uniform_int(stream, 0, 5)] += 1
    assert all(abs(count - 1_000) < 5 * (6_000 * (1 / 6) * (5 / 6)) ** 0.5 for count in counts)


def test_shuffle_keeps_items_and_mixes_evenly() -> None:
    stream = named_stream(2, "test")
    firsts = [0] * 4
    for _ in range(4_000):
        items = list(range(4))
        shuffle(stream, items)
        assert sorted(items) == [0, 1, 2, 3]
        firsts[items[0]] += 1
    assert all(abs(count - 1_000) < 5 * (4_000 * 0.25 * 0.75) ** 0.5 for count in firsts)


def test_exponential_is_the_inverse_of_its_distribution() -> None:
    for u in (0.0, 2**-53, 0.25, 0.5, 0.999, 1 - 2**-53):
        expected_ns = -math.log(1 - u) / 2.5 * 1e9
        assert abs(exponential_ns(Fixed(u), 2.5) - expected_ns) <= 0.5 + 1e-12 * expected_ns
    assert exponential_ns(Fixed(0.0), 2.5) == 0
