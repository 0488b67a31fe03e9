"""The end of a greedy step: the best token of each row, appended to its sequence."""

import math

import torch
import triton
import triton.language as tl

# Logits that a program reads at once: with 16 warps, two loads of 16 bytes a thread.
_LOGITS = 4096
_WARPS = 16


def append_best(
    logits: torch.Tensor,
    state: torch.Tensor,
    stop_ids: torch.Tensor,
    tokens: torch.Tensor,
    slots: torch.Tensor,
) -> torch.Tensor:
    """Append the token of the largest logit, of equal ones the first, to live sequences.

    logits: (R, V) fp32 or fp64. slots: (R,) int64, the sequence of each row. state: (sequence slots, 3)
    int64, length, finished and greatest length; stop_ids: (sequence slots, n) int64; tokens: (sequence slots,
    positions) int64. state and stop_ids may be columns of a wider table. Lengths, finish flags and tokens are
    updated in place. A row whose largest logit is not finite, or that has a NaN, ends its sequence as broken.
    Returns (R, 4) int64: tokens appended (0 or 1), token, finished, broken.
    """
    operation = append_best_triton if logits.is_cuda else append_best_reference
    return operation(logits, state, stop_ids, tokens, slots)


def append_best_reference(
    logits: torch.Tensor,
    state: torch.Tensor,
    stop_ids: torch.Tensor,
    tokens: torch.Tensor,
    slots: torch.Tensor,
) -> torch.Tensor:
    best, chosen = logits.max(dim=-1)
    return append(best, chosen, state, stop_ids, tokens, slots)


def append(
    best: torch.Tensor,
    chosen: torch.Tensor,
    state: torch.Tensor,
    stop_ids: torch.Tensor,
    tokens: torch.Tensor,
    slots: torch.Tensor,
) -> torch.Tensor:
    """append_best with the tokens chosen: (R,) already, and the largest logits best: (R,)."""
    length, finished, greatest = state[slots].unbind(-1)
    live = finished == 0
    appended = live & (best.abs() < math.inf)
    broken = live ^ appended
    length = length + appended
    # A finished sequence of full length has no place left: its last token is written over itself.
    place = length - 1
    tokens[slots, place] = torch.where(appended, chosen, tokens[slots, place])
    over = (stop_ids[slots] == chosen[:, None]).any(-1) | (length >= greatest)
    finished = finished | over | broken
    state[slots, :2] = torch.stack((length, finished), dim=-1)
    return torch.stack((appended.long(), chosen, finished, broken.long()), dim=-1)


def append_best_triton(
    logits: torch.Tensor,
    state: torch.Tensor,
    stop_ids: torch.Tensor,
    tokens: torch.Tensor,
    slots: torch.Tensor,
) -> torch.Tensor:
    """logits and slots must be contiguous, the last stride of the others 1. A slot may occur in several rows
    only if it is finished."""
    rows, vocabulary = logits.shape
    results = torch.empty(rows, 4, dtype=torch.int64, device=logits.device)
    _append_best_kernel[rows,](
        logits, state, stop_ids, tokens, slots, results,
        state.stride(0), stop_ids.stride(0), tokens.stride(0),
        VOCABULARY=vocabulary, STOP_IDS=stop_ids.shape[1], BLOCK=_LOGITS, num_warps=_WARPS,
    )  # fmt: skip
    return results


@triton.jit(
    do_not_specialize=["state_stride", "stop_stride", "tokens_stride"],
    do_not_specialize_on_alignment=["state", "stop_ids", "tokens", "slots", "results"],
)
def _append_best_kernel(
    logits,
    state,
    stop_ids,
    tokens,
    slots,
    results,
    state_stride,
    stop_stride,
    tokens_stride,
    VOCABULARY: tl.constexpr,
    STOP_IDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program a row. STOP_IDS is a power of two."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    at = state + slot * state_stride
    length = tl.load(at)
    finished = tl.load(at + 1)
    greatest = tl.load(at + 2)
    stops = tl.load(stop_ids + slot * stop_stride + tl.arange(0, STOP_IDS))

    # Each lane keeps the best of its own column of tiles: the rows are compared once, at the end.
    lane = tl.arange(0, BLOCK)
    best = tl.full((BLOCK,), float("-inf"), logits.dtype.element_ty)
    token = lane
    for first in range(0, VOCABULARY, BLOCK):
        x = tl.load(
            logits + row * VOCABULARY + first + lane, mask=first + lane < VOCABULARY, other=float("-inf")
        )
        x = tl.where(x == x, x, float("inf"))
        better = x > best
        best = tl.where(better, x, best)
        token = tl.where(better, first + lane, token)
    largest = tl.max(best, axis=0)
    chosen = tl.min(tl.where(best == largest, token, VOCABULARY), axis=0).to(tl.int64)

    live = finished == 0
    appended = live & (largest < float("inf")) & (largest > float("-inf"))
    broken = live & ~appended
    length += appended.to(tl.int64)
    over = (tl.sum((stops == chosen).to(tl.int32), axis=0) > 0) | (length >= greatest)
    done = ((finished != 0) | over | broken).to(tl.int64)
    tl.store(tokens + slot * tokens_stride + length - 1, chosen, mask=appended)
    tl.store(at, length)
    tl.store(at + 1, done)
    to = results + 4 * row
    tl.store(to, appended.to(tl.int64))
    tl.store(to + 1, chosen)
    tl.store(to + 2, done)
    tl.store(to + 3, broken.to(tl.int64))
