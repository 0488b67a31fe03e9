"""silu_mul: the kernel against the reference."""

import pytest
import torch

from engine.kernels.activation import silu_mul, silu_mul_reference, silu_mul_triton
from tests.engine.kernels.measured import Place, assert_as_exact, assert_same_roundings


@pytest.mark.parametrize(("rows", "width"), [(1, 96), (3, 1024), (5, 1500)])
def test_kernel_is_as_exact_as_the_reference(place: Place, rows: int, width: int) -> None:
    rows = rows * 101 if place.large else rows
    gate_up = place.normal(rows, 2 * width, scale=4)
    out, reference = silu_mul_triton(gate_up), silu_mul_reference(gate_up)
    assert_as_exact(out, reference, silu_mul_reference(gate_up.double()))
    assert_same_roundings(out, reference)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
def test_large_gates_neither_overflow_nor_vanish(place: Place) -> None:
    gate_up = torch.tensor([[-200.0, -30.0, 0.0, 30.0, 200.0, 2, 2, 2, 2, 2]]).to(place.device, place.dtype)
    out = silu_mul_triton(gate_up)
    torch.testing.assert_close(out, silu_mul_reference(gate_up))


def test_cpu_tensors_take_the_reference() -> None:
    gate_up = torch.randn(3, 8, dtype=torch.bfloat16)
    gate, up = gate_up.chunk(2, dim=-1)
    assert torch.equal(silu_mul(gate_up), torch.nn.functional.silu(gate) * up)
