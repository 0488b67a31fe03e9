"""How far a result lies from the exact one, and how far it may."""

from dataclasses import dataclass

import pytest
import torch


@dataclass(frozen=True)
class Place:
    """Where a kernel test runs, and in which dtype."""

    device: str
    dtype: torch.dtype

    @property
    def large(self) -> bool:
        """Whether shapes may be those of real steps: the interpreter takes milliseconds a program."""
        return self.device == "cuda"

    def normal(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(*shape, dtype=torch.float64) * scale).to(self.device, self.dtype)


def take_turns(place: Place, number: int) -> None:
    """Case `number` runs in one dtype under the interpreter, even ones in fp32, odd ones in fp16; in all on a
    device."""
    if place.device == "cpu" and (place.dtype == torch.float16) != (number % 2 == 1):
        pytest.skip("takes long to interpret: runs in the other dtype")


def assert_as_exact(result: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> None:
    """The error against `exact` (float64) is at most 1.5 times that of eager code in the same dtype.

    Both the largest error and the root mean square are held to it. Eight units of the last place of fp32 (of
    fp64 for fp64 results), relative to the largest value, are granted on top, for fp32 results whose eager
    twin happens to be all but exact.
    """
    assert result.dtype == eager.dtype
    wide = torch.float64 if result.dtype == torch.float64 else torch.float32
    granted = 8 * torch.finfo(wide).eps * float(exact.abs().max())
    errors, allowed = (result.double() - exact).abs(), (eager.double() - exact).abs()
    assert float(errors.max()) <= 1.5 * float(allowed.max()) + granted
    assert float(errors.square().mean().sqrt()) <= 1.5 * float(allowed.square().mean().sqrt()) + granted


def assert_same_roundings(result: torch.Tensor, reference: torch.Tensor) -> None:
    """16-bit results differ from the reference in at most 1 % of the elements.

    Sums of another order seldom turn a rounding to 16 bits; one left out on the way turns every fourth.
    """
    if result.itemsize == 2:
        assert float((result != reference).double().mean()) <= 0.01
