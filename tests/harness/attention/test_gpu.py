"""The clock and a small block on a CUDA device."""

import pytest
import torch

from harness.attention.formulas import Shape
from harness.attention.measure import Bench, measure_block
from harness.attention.plan import Block, Cell, Timing
from harness.attention.timing import CudaClock, Operation
from harness.play import GpuAccess

pytestmark = pytest.mark.gpu
MIB = 1 << 20


def test_time_grows_with_the_work_and_leaves_launches_out():
    clock = CudaClock()
    tensors = [torch.zeros(size * MIB, dtype=torch.int8, device="cuda") for size in (256, 1024)]
    times = []
    for tensor in tensors:
        operation = Operation(lambda _, tensor=tensor: tensor.add_(1))
        times.append(min(clock.sample_ns(operation) for _ in range(5)))
    assert 3 < times[1] / times[0] < 5


def test_memory_is_what_is_held_at_once_above_the_inputs():
    clock = CudaClock()
    operation = Operation(
        run=lambda held: held.clone(), prepare=lambda: torch.zeros(64 * MIB, dtype=torch.int8, device="cuda")
    )
    assert clock.peak_mib(operation) == pytest.approx(128, abs=2)


@pytest.mark.parametrize("causal", [True, False])
def test_every_implementation_agrees_with_float64(causal: bool):
    shape = Shape(causal, head_dim=64, heads=4, kv_heads=4, seq=512, batch=2)
    impls = ("triton", "sdpa_flash", "sdpa_cudnn", "flex", "varlen", "naive")
    cells = tuple(Cell("c", impl, way, shape) for impl in impls for way in ("forward", "backward"))
    bench = Bench(
        clock=CudaClock(), timing=Timing(warmups=1, samples=2, least_samples=2, budget_ms=10),
        dtype="bfloat16", device="cuda", gpu=GpuAccess(None, ()), seed=1, versions=("", ""),
        undeclared_gpu_processes="",
    )  # fmt: skip
    found, _ = measure_block(bench, Block("s", cells), 0)
    assert [row.failure for row in found if row.failure] == []
    assert all(row.error <= 2 * row.reference_error for row in found)
