"""Made-up attention inputs, and results and gradients of the kernels, of eager code and of float64."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.kernels.attention import attention_triton, packed_attention_triton
from engine.kernels.attention_reference import attention_reference, packed_attention_reference
from tests.engine.kernels.measured import Place

FEW = 4096
Tensors = tuple[torch.Tensor, ...]
Operation = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Shape:
    rows: int
    keys: int
    heads: int = 2
    kv_heads: int = 1
    dim: int = 64
    batch: int = 1


def inputs(place: Place, shape: Shape) -> Tensors:
    """query, key, value: (B, rows or keys, heads, D)."""
    return (
        place.normal(shape.batch, shape.rows, shape.heads, shape.dim),
        place.normal(shape.batch, shape.keys, shape.kv_heads, shape.dim),
        place.normal(shape.batch, shape.keys, shape.kv_heads, shape.dim),
    )


def offsets(place: Place, lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths], device=place.device).cumsum(0).to(torch.int32)


def with_gradients(operation: Operation, tensors: Tensors, grad_out: torch.Tensor) -> Tensors:
    """out, dQ, dK, dV."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    out = operation(*leaves)
    return out.detach(), *torch.autograd.grad(out, leaves, grad_out)


def dense(causal: bool, scale: float) -> Operation:
    return lambda q, k, v: attention_triton(q, k, v, causal=causal, scale=scale)


def check_dense(tensors: Tensors, causal: bool, grad_out: torch.Tensor | None = None) -> None:
    """Result and gradients are as exact as those of eager code in the same dtype."""
    query = tensors[0]
    grad_out = (
        torch.randn_like(query, memory_format=torch.contiguous_format) if grad_out is None else grad_out
    )
    ours = with_gradients(dense(causal, query.shape[-1] ** -0.5), tensors, grad_out)

    def reference(*qkv: torch.Tensor) -> torch.Tensor:
        return attention_reference(*qkv, causal=causal)

    assert_all_as_exact(ours, reference, tensors, grad_out)


def check_packed(place: Place, rows: list[int], keys: list[int], shape: Shape, causal: bool) -> None:
    """As check_dense, of sequences of these numbers of rows and keys; of `shape` only heads and dim count."""
    tensors = tuple(
        x[0] for x in inputs(place, Shape(sum(rows), sum(keys), shape.heads, shape.kv_heads, shape.dim))
    )
    packing = (offsets(place, rows), offsets(place, keys), max(rows), max(keys))
    scale = shape.dim**-0.5

    def kernel(*qkv: torch.Tensor) -> torch.Tensor:
        return packed_attention_triton(*qkv, *packing, causal=causal, scale=scale)

    def reference(*qkv: torch.Tensor) -> torch.Tensor:
        return packed_attention_reference(*qkv, *packing, causal=causal)

    grad_out = torch.randn_like(tensors[0])
    assert_all_as_exact(with_gradients(kernel, tensors, grad_out), reference, tensors, grad_out)


def assert_all_as_exact(
    ours: Tensors, reference: Operation, tensors: Tensors, grad_out: torch.Tensor
) -> None:
    """Largest and root mean square error of each tensor are at most 1.5 times those of eager code.

    On top are granted 16 units of the last place of fp32 (of fp64 for fp64) of the largest value of any: a
    row that sees one key has gradients of exactly 0, differences of equal terms, which eager code may hit and
    the kernels' sums of another order miss. Of FEW values in 16 bits both errors are luck: there the same
    algorithm with perfect sums passes the bound in one case of ten, though its error is smaller in the mean.
    Half a unit of their own last place is granted to them.
    """
    eager = with_gradients(reference, tensors, grad_out)
    exact = with_gradients(reference, tuple(x.double() for x in tensors), grad_out.double())
    wide = torch.float64 if tensors[0].dtype == torch.float64 else torch.float32
    largest = max(float(x.abs().max()) for x in exact if x.numel())
    granted = 16 * torch.finfo(wide).eps * largest
    for name, mine, same_dtype, true in zip(("out", "dQ", "dK", "dV"), ours, eager, exact, strict=True):
        assert mine.dtype == same_dtype.dtype
        assert mine.is_contiguous()
        errors, allowed = (mine.double() - true).abs(), (same_dtype.double() - true).abs()
        luck = largest * torch.finfo(mine.dtype).eps / 2 if mine.itemsize == 2 and mine.numel() < FEW else 0
        assert float(errors.max()) <= 1.5 * float(allowed.max()) + granted + luck, name
        rms, allowed_rms = (float(x.square().mean().sqrt()) for x in (errors, allowed))
        assert rms <= 1.5 * allowed_rms + granted + luck, name
