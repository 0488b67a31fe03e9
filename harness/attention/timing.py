"""Timing one operation on a GPU or a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

# Five times the 50 MB of an H200's L2 cache: nothing of the inputs is left in it.
FLUSH_BYTES = 256 << 20
# About half a millisecond: longer than Python takes to queue a backward, so that the GPU never waits for it.
HEAD_START_CYCLES = 1_000_000
MIB = 1 << 20


@dataclass(frozen=True)
class Operation:
    """`run` is timed; `prepare` makes its argument beforehand."""

    run: Callable[[Any], Any]
    prepare: Callable[[], Any] = lambda: None


class Clock(Protocol):
    """Times operations on one device."""

    def sample_ns(self, operation: Operation) -> int:
        """Time of one run."""
        ...

    def peak_mib(self, operation: Operation) -> float | None:
        """Most memory that preparation and run need above what is there before."""
        ...

    def forget(self) -> None:
        """Gives unused memory back, after a failure or before another shape."""
        ...


class CudaClock:
    """Events on the current stream, the L2 cache flushed before each run.

    The GPU spins while the CPU queues a run, so that launches are not part of the time.
    """

    def __init__(self) -> None:
        self._flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def sample_ns(self, operation: Operation) -> int:
        start, end = self._events
        prepared = operation.prepare()
        self._flush.zero_()
        torch.cuda._sleep(HEAD_START_CYCLES)
        start.record()
        operation.run(prepared)
        end.record()
        end.synchronize()
        return round(start.elapsed_time(end) * 1e6)

    def peak_mib(self, operation: Operation) -> float:
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        operation.run(operation.prepare())
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / MIB

    def forget(self) -> None:
        torch.cuda.empty_cache()


class CpuClock:
    """Wall clock; memory is not known."""

    def sample_ns(self, operation: Operation) -> int:
        prepared = operation.prepare()
        start = time.perf_counter_ns()
        operation.run(prepared)
        return time.perf_counter_ns() - start

    def peak_mib(self, operation: Operation) -> None:
        operation.run(operation.prepare())

    def forget(self) -> None:
        return


def clock_of(device: str) -> Clock:
    """The clock of cpu or cuda."""
    return CudaClock() if device == "cuda" else CpuClock()
