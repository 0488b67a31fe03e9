"""The implementations by name, each as a function (query, key, value) -> output.

Dense tensors are (B, S, H, D), query with H heads, key and value with K; packed ones (T, H, D). Each import
stands where it is needed: an implementation that is not there fails alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from harness.attention.formulas import Shape
from harness.attention.naive import naive

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
COMPILED = ("flex", "compiled_naive")


def attend_with(impl: str, shape: Shape, device: str) -> Attend:
    """The implementation for a shape. Raises ValueError where it has none for packed sequences."""
    if shape.lengths:
        if impl not in _PACKED:
            raise ValueError(f"{impl} has no packed sequences here")
        return _PACKED[impl](shape, device)
    return _DENSE[impl](shape, device)


def _triton(shape: Shape, _device: str) -> Attend:
    from engine.kernels.attention import attention

    return partial(attention, causal=shape.causal)


def _triton_packed(shape: Shape, device: str) -> Attend:
    from engine.kernels.attention import packed_attention

    offsets = _offsets(shape, device)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return packed_attention(
            query, key, value, offsets, offsets, shape.seq, shape.seq, causal=shape.causal
        )

    return attend


def _reference(shape: Shape, _device: str) -> Attend:
    from engine.kernels.attention import attention_reference

    return partial(attention_reference, causal=shape.causal)


def _sdpa(shape: Shape, _device: str, backend: SDPBackend) -> Attend:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            out = F.scaled_dot_product_attention(
                *_heads_first(query, key, value), is_causal=shape.causal, enable_gqa=shape.group > 1
            )
        return out.transpose(1, 2)

    return attend


def _flex(shape: Shape, device: str) -> Attend:
    """One compilation a shape, as its users get it by default."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled = torch.compile(flex_attention, dynamic=False)
    mask = None
    if shape.causal:
        mask = create_block_mask(
            lambda _batch, _head, row, column: row >= column, None, None, shape.seq, shape.seq, device=device
        )

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        heads_first = _heads_first(query, key, value)
        return compiled(*heads_first, block_mask=mask, enable_gqa=shape.group > 1).transpose(1, 2)

    return attend


def _varlen(shape: Shape, device: str) -> Attend:
    """PyTorch's kernel for packed sequences; equal ones are packed as they lie."""
    from torch.nn.attention.varlen import varlen_attn

    offsets = _offsets(shape, device)
    window = (-1, 0 if shape.causal else -1)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        rows = (tensor.flatten(0, -3) for tensor in (query, key, value))
        out = varlen_attn(*rows, offsets, offsets, shape.seq, shape.seq, window_size=window)
        return out.view(query.shape)

    return attend


def _naive(shape: Shape, _device: str, compiled: bool) -> Attend:
    function = torch.compile(naive, dynamic=False) if compiled else naive

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key, value = _heads_first(query, key, value)
        if shape.group > 1:
            key, value = (tensor.repeat_interleave(shape.group, dim=1) for tensor in (key, value))
        return function(query, key, value, shape.causal).transpose(1, 2)

    return attend


def _heads_first(*tensors: Tensor) -> list[Tensor]:
    return [tensor.transpose(1, 2) for tensor in tensors]


def _offsets(shape: Shape, device: str) -> Tensor:
    """Where each sequence begins, and the end: (batch + 1,) int32."""
    lengths = shape.lengths or (shape.seq,) * shape.batch
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)


_DENSE: dict[str, Callable[[Shape, str], Attend]] = {
    "triton": _triton,
    "sdpa_flash": partial(_sdpa, backend=SDPBackend.FLASH_ATTENTION),
    "sdpa_cudnn": partial(_sdpa, backend=SDPBackend.CUDNN_ATTENTION),
    "flex": _flex,
    "varlen": _varlen,
    "compiled_naive": partial(_naive, compiled=True),
    "naive": partial(_naive, compiled=False),
    "reference": _reference,
}
_PACKED: dict[str, Callable[[Shape, str], Attend]] = {"triton": _triton_packed, "varlen": _varlen}
