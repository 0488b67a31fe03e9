"""A block with a clock that notes what it is asked, and implementations that fail."""

import pytest
import torch

from harness.attention import measure
from harness.attention.measure import Bench, measure_block
from harness.attention.plan import Block, DenseSweep, Timing
from harness.attention.timing import CpuClock
from harness.play import GpuAccess


class NotingClock(CpuClock):
    """Counts samples in the order in which they are taken, by the operation."""

    def __init__(self):
        self.operations = []

    def sample_ns(self, operation):
        self.operations.append(operation)
        return super().sample_ns(operation)


def bench(clock) -> Bench:
    return Bench(
        clock=clock, timing=Timing(warmups=1, samples=3, least_samples=2, budget_ms=1e3), dtype="float32",
        device="cpu", gpu=GpuAccess(None, ()), seed=1, versions=("t", "t"), undeclared_gpu_processes="",
    )  # fmt: skip


def block(*implementations: str) -> Block:
    sweep = DenseSweep(
        kind="dense", name="s", causal=True, heads=2, head_dims=(16,), rows=32, seqs=(16,),
        implementations=implementations,
    )  # fmt: skip
    return next(sweep.blocks())


def test_samples_are_taken_there_and_back():
    clock = NotingClock()
    found, samples = measure_block(bench(clock), block("naive", "reference"), 10)
    order = [id(operation) for operation in clock.operations]
    there = list(dict.fromkeys(order))
    assert len(there) == 4
    assert order == [each for place in [*there, *reversed(there)] for each in [place] * 4]
    assert [(row.impl, row.direction, row.repetition) for row in found] == [
        ("naive", "forward", 0), ("naive", "backward", 0), ("reference", "forward", 0),
        ("reference", "backward", 0), ("reference", "backward", 1), ("reference", "forward", 1),
        ("naive", "backward", 1), ("naive", "forward", 1),
    ]  # fmt: skip
    assert [row.position for row in found] == list(range(10, 18))
    assert len(samples) == 8 * 3
    assert all(row.error < 1e-5 and not row.failure for row in found)


@pytest.mark.parametrize(
    ("raised", "failure"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 96 GiB"), "out of memory"),
        (RuntimeError("InductorError: CUDA out of memory"), "out of memory"),
        (
            RuntimeError("No available kernel. Aborting execution.\nmore"),
            "RuntimeError: No available kernel. ",
        ),
    ],
)
def test_what_fails_is_a_row_and_the_others_are_measured(monkeypatch, raised, failure):
    real = measure.attend_with

    def attend_with(impl, shape, device):
        if impl != "naive":
            return real(impl, shape, device)

        def attend(*_tensors):
            raise raised

        return attend

    monkeypatch.setattr(measure, "attend_with", attend_with)
    found, samples = measure_block(bench(CpuClock()), block("naive", "reference"), 0)
    assert {row.impl for row in found if row.failure} == {"naive"}
    assert all(row.failure.startswith(failure) for row in found if row.impl == "naive")
    assert {row.impl for row in samples} == {"reference"}
    assert len(found) == 8


def test_a_wrong_kernel_is_seen(monkeypatch):
    real = measure.attend_with
    monkeypatch.setattr(
        measure, "attend_with", lambda *each: lambda q, k, v: real(*each)(q, k.roll(1, dims=1), v)
    )
    found, _ = measure_block(bench(CpuClock()), block("reference"), 0)
    assert all(row.error > 100 * row.reference_error for row in found)
