"""Calls at absolute times: never early, in order, late ones at once."""

import asyncio
import time
from collections.abc import Callable

import pytest
import uvloop

from harness.client.pacer import Pacer


def run(spin_ns: int, use: Callable[[Pacer, Callable[[], None]], None]) -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        pacer = Pacer(loop, spin_ns)
        end = loop.create_future()
        use(pacer, lambda: end.set_result(None))
        await asyncio.wait_for(end, 60)
        pacer.close()

    uvloop.run(body())


@pytest.mark.parametrize("spin_ns", [0, 200_000])
def test_never_early_and_in_order(spin_ns: int) -> None:
    start_ns = time.monotonic_ns()
    offsets = [5_000_000, 1_000_000, 1_000_000, 3_333_333, 20_000_000, 1, 19_999_999]
    called: list[tuple[int, int, int]] = []

    def use(pacer: Pacer, end: Callable[[], None]) -> None:
        for number, offset in enumerate(offsets):
            due_ns = start_ns + offset
            pacer.call_at(due_ns, lambda n=number, due=due_ns: called.append((due, n, time.monotonic_ns())))
        pacer.call_at(start_ns + 25_000_000, end)

    run(spin_ns, use)
    assert [number for _, number, _ in called] == [5, 1, 2, 3, 0, 6, 4]
    assert all(called_ns >= due_ns for due_ns, _, called_ns in called)


def test_late_deadlines_are_all_called() -> None:
    """Times long past, and ones that callbacks add meanwhile."""
    called: list[int] = []

    def use(pacer: Pacer, end: Callable[[], None]) -> None:
        def step(number: int) -> None:
            called.append(number)
            if number == 50:
                end()
            else:
                pacer.call_at(number, lambda: step(number + 1))

        pacer.call_at(-5, lambda: step(0))

    run(0, use)
    assert called == list(range(51))
