"""Scaled dot-product attention, dense and packed, with gradients: Triton on a GPU, plain PyTorch on a CPU.

One custom operation each way, so that torch.compile sees them as a whole.
"""

import math

import torch

from engine.kernels.attention_backward import backward_triton
from engine.kernels.attention_forward import forward_triton
from engine.kernels.attention_reference import attention_reference, packed_attention_reference
from engine.kernels.attention_tiles import padded_dim
from engine.kernels.attention_work import Offsets, Work, rows_readable

_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    causal: bool,
    scale: float | None = None,
) -> torch.Tensor:
    """softmax(query · keyᵀ · scale) · value per head, differentiable.

    query: (B, Sq, H, D); key, value: (B, Sk, Hkv, D); one dtype of bf16, fp16, fp32, fp64; any strides; D at
    most 128; H a multiple of Hkv, query head h reads KV head h // (H / Hkv). Returns (B, Sq, H, D),
    contiguous. causal: row i sees keys 0 … i + Sk - Sq (aligned at the bottom right, unlike PyTorch's
    is_causal). Rows that see no key are zeros, and give gradients of zero. scale: above 0; None: 1 / sqrt(D).
    Gradients are the same bits in every run, as the result is: all sums have a fixed order.
    ValueError for other shapes, dtypes and scales.
    """
    _check(query, key, value, axes=4)
    if query.shape[0] != key.shape[0]:
        raise ValueError(f"query has {query.shape[0]} batch entries and key {key.shape[0]}")
    scale = _checked_scale(scale, query.shape[-1])
    if not query.is_cuda:
        return attention_reference(query, key, value, causal=causal, scale=scale)
    return attention_triton(query, key, value, causal=causal, scale=scale)


def packed_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    offsets_q: torch.Tensor,
    offsets_k: torch.Tensor,
    longest_q: int,
    longest_k: int,
    *,
    causal: bool,
    scale: float | None = None,
) -> torch.Tensor:
    """`attention` of each of N sequences, which lie one behind the other.

    query: (T, H, D); key, value: (Tk, Hkv, D); offsets_q, offsets_k: (N + 1,) int32 on the same device, from
    0 to T and Tk: sequence n has rows offsets[n] … offsets[n + 1] - 1, perhaps none. longest_q, longest_k: at
    least the longest of them, on trust, as are the offsets: reading them would wait for the device.
    Returns (T, H, D), contiguous. ValueError as `attention`, and for offsets of other shapes or dtypes.
    """
    _check(query, key, value, axes=3)
    for name, offsets in (("offsets_q", offsets_q), ("offsets_k", offsets_k)):
        if offsets.dtype != torch.int32 or offsets.ndim != 1 or offsets.device != query.device:
            raise ValueError(
                f"{name} is {offsets.dtype} of shape {tuple(offsets.shape)} on {offsets.device}, "
                f"not int32 of shape (N + 1,) on {query.device}"
            )
    if len(offsets_q) != len(offsets_k) or not len(offsets_q):
        raise ValueError(
            f"offsets_q and offsets_k have {len(offsets_q)} and {len(offsets_k)} entries, not N + 1"
        )
    scale = _checked_scale(scale, query.shape[-1])
    packed = (query, key, value, offsets_q, offsets_k, longest_q, longest_k)
    if not query.is_cuda:
        return packed_attention_reference(*packed, causal=causal, scale=scale)
    return packed_attention_triton(*packed, causal=causal, scale=scale)


def attention_triton(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    causal: bool,
    scale: float,
) -> torch.Tensor:
    out, _ = _forward(query, key, value, None, None, 0, 0, causal, scale)
    return out


def packed_attention_triton(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    offsets_q: torch.Tensor,
    offsets_k: torch.Tensor,
    longest_q: int,
    longest_k: int,
    *,
    causal: bool,
    scale: float,
) -> torch.Tensor:
    out, _ = _forward(
        query[None], key[None], value[None], offsets_q, offsets_k, longest_q, longest_k, causal, scale,
    )  # fmt: skip
    return out[0]


def forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    offsets: Offsets | None = None,
    *,
    causal: bool,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel alone, without gradients: the result and the natural logarithms of the sums of exponentials.

    Dense without offsets, as `attention`: (B, Sq, H, D) and (B, H, Sq). With them packed, as
    `packed_attention`: (T, H, D) and (H, T). Logarithms are fp32 (fp64 for fp64), -inf where no key is seen.
    """
    _check(query, key, value, axes=3 if offsets else 4)
    scale = _checked_scale(scale, query.shape[-1])
    if offsets is None:
        return forward_triton(_work(query, key, value, None, causal, scale))
    out, lse = forward_triton(_work(query[None], key[None], value[None], offsets, causal, scale))
    return out[0], lse[0]


@torch.library.custom_op("llm_ladder::attention_forward", mutates_args=())
def _forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    offsets_q: torch.Tensor | None,
    offsets_k: torch.Tensor | None,
    longest_q: int,
    longest_k: int,
    causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Packed with offsets, dense without."""
    offsets = _offsets(offsets_q, offsets_k, longest_q, longest_k)
    return forward_triton(_work(query, key, value, offsets, causal, scale))


@torch.library.custom_op("llm_ladder::attention_backward", mutates_args=())
def _backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    offsets_q: torch.Tensor | None,
    offsets_k: torch.Tensor | None,
    longest_q: int,
    longest_k: int,
    causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    offsets = _offsets(offsets_q, offsets_k, longest_q, longest_k)
    work = _work(query, key, value, offsets, causal, scale)
    return backward_triton(work, out, lse, grad_out)


@_forward.register_fake
def _forward_shapes(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: object
) -> tuple[torch.Tensor, torch.Tensor]:
    batch, rows, heads, _dim = query.shape
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    return query.new_empty(query.shape), query.new_empty(batch, heads, rows, dtype=wide)


@_backward.register_fake
def _backward_shapes(
    grad_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: object
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)


def _save(ctx, inputs: tuple, output: tuple[torch.Tensor, torch.Tensor]) -> None:
    *tensors, ctx.longest_q, ctx.longest_k, ctx.causal, ctx.scale = inputs
    query, key, value, offsets_q, offsets_k = tensors
    ctx.save_for_backward(query, key, value, *output, offsets_q, offsets_k)
    ctx.mark_non_differentiable(output[1])


def _gradients(ctx, grad_out: torch.Tensor, _grad_lse: torch.Tensor) -> tuple:
    grads = _backward(grad_out, *ctx.saved_tensors, ctx.longest_q, ctx.longest_k, ctx.causal, ctx.scale)
    return *grads, *(None,) * 6


_forward.register_autograd(_gradients, setup_context=_save)


def _offsets(
    offsets_q: torch.Tensor | None, offsets_k: torch.Tensor | None, longest_q: int, longest_k: int
) -> Offsets | None:
    if offsets_q is None or offsets_k is None:
        return None
    return Offsets(offsets_q.contiguous(), offsets_k.contiguous(), longest_q, longest_k)


def _work(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    offsets: Offsets | None,
    causal: bool,
    scale: float,
) -> Work:
    return Work(rows_readable(query), rows_readable(key), rows_readable(value), offsets, causal, scale)


def _check(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, axes: int) -> None:
    if query.ndim != axes or key.ndim != axes or key.shape != value.shape or query.shape[-1] != key.shape[-1]:
        shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
        raise ValueError(f"{shapes}: not {axes} axes each, key and value alike, of one head dimension")
    if key.shape[-2] == 0 or query.shape[-2] % key.shape[-2]:
        raise ValueError(f"{query.shape[-2]} query heads are no multiple of {key.shape[-2]} KV heads")
    if query.dtype not in _DTYPES or not query.dtype == key.dtype == value.dtype:
        raise ValueError(f"dtypes {query.dtype}, {key.dtype}, {value.dtype}: not one of {_DTYPES} for all")
    if not query.device == key.device == value.device:
        raise ValueError(f"query is on {query.device}, key on {key.device}, value on {value.device}")
    padded_dim(query.shape[-1])


def _checked_scale(scale: float | None, dim: int) -> float:
    if scale is None:
        return 1 / math.sqrt(dim)
    if not 0 < scale < math.inf:
        raise ValueError(f"scale {scale} is not above 0 and finite")
    return scale
