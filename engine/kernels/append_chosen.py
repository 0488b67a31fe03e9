"""The end of a step: the next token of each row, chosen as its sequence asks, and appended to it.

One kernel for every row, so that one captured step serves any mixture of requests. A row that asks for
nothing takes the best token of its logits, for which they are read once; what a row asks for only that row
pays for.
"""

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels.sample import GOLDEN, MIX_A, MIX_B, SMALL

# Logits that a program reads at once: with 16 warps, two loads of 16 bytes a thread.
_LOGITS = 4096
_WARPS = 16
# Two programs on a processor: the rare ways through the kernel would take registers from the common one.
_REGISTERS = 64
_GOLDEN: tl.constexpr = tl.constexpr(GOLDEN)
_MIX_A: tl.constexpr = tl.constexpr(MIX_A)
_MIX_B: tl.constexpr = tl.constexpr(MIX_B)
_SMALL: tl.constexpr = tl.constexpr(SMALL)
_IN_PROMPT: tl.constexpr = tl.constexpr(1 << 30)
_LEAST_TEMPERATURE: tl.constexpr = tl.constexpr(1e-5)


@dataclass(frozen=True)
class Columns:
    """What is kept of each sequence slot: columns of one table, (slots,) or (slots, n), int64 and float32.

    state: (slots, 3), length, finished and greatest length. The others: see engine.serving.slot_row.
    """

    state: torch.Tensor
    stop_ids: torch.Tensor
    prompt_length: torch.Tensor
    min_length: torch.Tensor
    top_k: torch.Tensor
    seed: torch.Tensor
    temperature: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    repetition: torch.Tensor
    presence: torch.Tensor
    frequency: torch.Tensor
    biased: torch.Tensor
    bias_ids: torch.Tensor
    bias: torch.Tensor


def append(
    best: torch.Tensor, chosen: torch.Tensor, columns: Columns, tokens: torch.Tensor, slots: torch.Tensor
) -> torch.Tensor:
    """Append chosen tokens (R,) to live sequences; best: (R,) the largest logit of each row, bare.

    slots: (R,) int64, the sequence of each row. tokens: (slots, positions) int64. Lengths, finish flags and
    tokens are updated in place. A row whose largest logit is not finite ends its sequence as broken. Returns
    (R, 4) int64: tokens appended (0 or 1), token, finished, broken.
    """
    length, finished, greatest = columns.state[slots].unbind(-1)
    live = finished == 0
    appended = live & (best.abs() < math.inf)
    broken = live ^ appended
    length = length + appended
    # A finished sequence of full length has no place left: its last token is written over itself.
    place = length - 1
    tokens[slots, place] = torch.where(appended, chosen, tokens[slots, place])
    over = (columns.stop_ids[slots] == chosen[:, None]).any(-1) | (length >= greatest)
    finished = finished | over | broken
    columns.state[slots, :2] = torch.stack((length, finished), dim=-1)
    return torch.stack((appended.long(), chosen, finished, broken.long()), dim=-1)


def append_chosen_triton(
    logits: torch.Tensor, counts: torch.Tensor, columns: Columns, tokens: torch.Tensor, slots: torch.Tensor
) -> torch.Tensor:
    """What Sampler.choose with all features and `append` do, for logits: (R, V) fp32 or fp64, which may be
    changed.

    counts: at least (R, V) int32 zeros, and zeros again afterwards. logits, counts and slots must be
    contiguous, the last stride of the others 1. A slot may occur in several rows only if it is finished. A
    row with a NaN ends its sequence as broken too.
    """
    rows, vocabulary = logits.shape
    results = torch.empty(rows, 4, dtype=torch.int64, device=logits.device)
    _append_kernel[rows,](
        logits, counts, results, tokens, slots, *vars(columns).values(),
        columns.state.stride(0), columns.temperature.stride(0), tokens.stride(0),
        VOCABULARY=vocabulary, STOP_IDS=columns.stop_ids.shape[1], BIASES=columns.bias.shape[1],
        BIAS_BLOCK=triton.next_power_of_2(columns.bias.shape[1]), BLOCK=_LOGITS,
        num_warps=_WARPS, maxnreg=_REGISTERS,
    )  # fmt: skip
    return results


_ALIGNED_ANYHOW = [
    "results", "tokens", "slots", "state", "stop_ids", "prompt_length", "min_length", "top_k", "seed",
    "temperature", "top_p", "min_p", "repetition", "presence", "frequency", "biased", "bias_ids", "bias",
]  # fmt: skip


@triton.jit(
    do_not_specialize=["int_stride", "float_stride", "tokens_stride"],
    do_not_specialize_on_alignment=_ALIGNED_ANYHOW,
)
def _append_kernel(
    logits,
    counts,
    results,
    tokens,
    slots,
    state,
    stop_ids,
    prompt_length,
    min_length,
    top_k,
    seed,
    temperature,
    top_p,
    min_p,
    repetition,
    presence,
    frequency,
    biased,
    bias_ids,
    bias,
    int_stride,
    float_stride,
    tokens_stride,
    VOCABULARY: tl.constexpr,
    STOP_IDS: tl.constexpr,
    BIASES: tl.constexpr,
    BIAS_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program a row. STOP_IDS is a power of two."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    ints = slot * int_stride
    floats = slot * float_stride
    base = logits + row * VOCABULARY
    history = tokens + slot * tokens_stride
    at = state + ints
    length = tl.load(at)
    finished = tl.load(at + 1)
    greatest = tl.load(at + 2)
    stops = tl.load(stop_ids + ints + tl.arange(0, STOP_IDS))
    heat = tl.load(temperature + floats)
    repeated = tl.load(repetition + floats)
    present = tl.load(presence + floats)
    frequent = tl.load(frequency + floats)
    addends = tl.load(biased + ints)
    stops_banned = length < tl.load(min_length + ints)
    largest, chosen = _best(base, VOCABULARY, BLOCK)

    live = finished == 0
    penalised = (repeated != 1) | (present != 0) | (frequent != 0)
    changed = live & (penalised | (addends > 0) | stops_banned)
    if changed:
        tl.debug_barrier()  # every thread has read what is changed now
        if addends > 0:
            entry = tl.arange(0, BIAS_BLOCK)
            valid = (entry < addends) & (entry < BIASES)
            token = tl.load(bias_ids + ints + entry, mask=valid, other=0)
            addend = tl.load(bias + floats + entry, mask=valid, other=0).to(base.dtype.element_ty)
            tl.store(base + token, tl.load(base + token, mask=valid, other=0) + addend, mask=valid)
            tl.debug_barrier()
        if stops_banned:
            tl.store(
                base + stops, tl.full((STOP_IDS,), float("-inf"), base.dtype.element_ty), mask=stops >= 0
            )
            tl.debug_barrier()
        if penalised:
            generated = tl.load(prompt_length + ints)
            _penalise(
                base,
                counts + row * VOCABULARY,
                history,
                generated,
                length,
                repeated,
                present,
                frequent,
                VOCABULARY,
                BLOCK,
            )
            tl.debug_barrier()
    if live & (heat > 0):
        key = _mixed(_mixed(tl.load(seed + ints) * _GOLDEN + length) + length * _GOLDEN)
        heat = tl.maximum(heat, _LEAST_TEMPERATURE)
        kept_k = tl.load(top_k + ints)
        kept_p = tl.load(top_p + floats)
        kept_share = tl.load(min_p + floats)
        threshold = tl.full((), float("-inf"), tl.float32)
        if (kept_k > 0) | (kept_p < 1) | (kept_share > 0):
            threshold = _threshold(base, heat, kept_k, kept_p, kept_share, VOCABULARY, BLOCK)
        chosen = _drawn(base, heat, threshold, key, VOCABULARY, BLOCK)
    elif changed:
        _, chosen = _best(base, VOCABULARY, BLOCK)

    appended = live & (largest < float("inf")) & (largest > float("-inf"))
    broken = live & ~appended
    length += appended.to(tl.int64)
    over = (tl.sum((stops == chosen).to(tl.int32), axis=0) > 0) | (length >= greatest)
    done = ((finished != 0) | over | broken).to(tl.int64)
    tl.store(history + length - 1, chosen, mask=appended)
    tl.store(at, length)
    tl.store(at + 1, done)
    to = results + 4 * row
    tl.store(to, appended.to(tl.int64))
    tl.store(to + 1, chosen)
    tl.store(to + 2, done)
    tl.store(to + 3, broken.to(tl.int64))


@triton.jit
def _best(base, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr):
    """The largest logit, infinite where one is NaN, and the first token that has it."""
    # Each lane keeps the best of its own column of tiles: the rows are compared once, at the end.
    lane = tl.arange(0, BLOCK)
    best = tl.full((BLOCK,), float("-inf"), base.dtype.element_ty)
    token = lane
    for first in range(0, VOCABULARY, BLOCK):
        x = tl.load(base + first + lane, mask=first + lane < VOCABULARY, other=float("-inf"))
        x = tl.where(x == x, x, float("inf"))
        better = x > best
        best = tl.where(better, x, best)
        token = tl.where(better, first + lane, token)
    largest = tl.max(best, axis=0)
    return largest, tl.min(tl.where(best == largest, token, VOCABULARY), axis=0).to(tl.int64)


@triton.jit
def _penalise(
    base,
    counts,
    history,
    generated,
    length,
    repetition,
    presence,
    frequency,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Penalties as in sample.penalised; from `generated` on the history is output.

    counts: (V,) int32 zeros, and zeros again afterwards: how often a token is in the output, and whether it
    is in the prompt.
    """
    lane = tl.arange(0, BLOCK)
    wide: tl.constexpr = base.dtype.element_ty
    for begin in range(0, length, BLOCK):
        place = begin + lane
        token = tl.load(history + place, mask=place < length, other=0)
        is_output = place >= generated
        tl.atomic_add(counts + token, 1, mask=(place < length) & is_output, sem="relaxed")
        tl.atomic_or(counts + token, _IN_PROMPT, mask=(place < length) & ~is_output, sem="relaxed")
    tl.debug_barrier()
    for first in range(0, VOCABULARY, BLOCK):
        exists = first + lane < VOCABULARY
        # Past the first-level cache, which the atomics do not reach.
        count = tl.load(counts + first + lane, mask=exists, other=0, cache_modifier=".cg")
        tl.store(counts + first + lane, tl.zeros((BLOCK,), tl.int32), mask=exists)
        x = tl.load(base + first + lane, mask=exists, other=0)
        factor = tl.where(count > 0, repetition, 1.0).to(wide)
        x = tl.where(x > 0, x / factor, x * factor)
        used = count & (_IN_PROMPT - 1)
        x -= (tl.where(used > 0, presence, 0.0) + used.to(tl.float32) * frequency).to(wide)
        tl.store(base + first + lane, x, mask=exists)


@triton.jit
def _scores(base, first, heat, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr):
    token = first + tl.arange(0, BLOCK)
    x = tl.load(base + token, mask=token < VOCABULARY, other=float("-inf"))
    return x.to(tl.float32) / heat


@triton.jit
def _ordered(x):
    """Integers in the order of the floats."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _threshold(base, heat, top_k, top_p, min_p, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr):
    """The least score that may be drawn, see sample.keep_mask.

    A filter keeps the scores x for which what lies above x, in number or in probability, is less than its
    limit. That grows as x falls, so x is found by bisection over the integers of the floats' order.
    """
    largest = tl.full((), float("-inf"), tl.float32)
    for first in range(0, VOCABULARY, BLOCK):
        largest = tl.maximum(largest, tl.max(_scores(base, first, heat, VOCABULARY, BLOCK), axis=0))
    low = _ordered(tl.full((), float("-inf"), tl.float32)).to(tl.int64)
    best = _ordered(largest).to(tl.int64)
    if top_k > 0:
        high = best
        while low < high:
            middle = (low + high) >> 1
            above = tl.zeros((BLOCK,), tl.int32)
            for first in range(0, VOCABULARY, BLOCK):
                x = _scores(base, first, heat, VOCABULARY, BLOCK)
                above += (_ordered(x) > middle.to(tl.int32)).to(tl.int32)
            enough = tl.sum(above, axis=0) < top_k
            high = tl.where(enough, middle, high)
            low = tl.where(enough, low, middle + 1)
    if top_p < 1:
        limit = top_p * _mass_above(base, heat, largest, low - 1, VOCABULARY, BLOCK)
        high = best
        while low < high:
            middle = (low + high) >> 1
            enough = _mass_above(base, heat, largest, middle, VOCABULARY, BLOCK) < limit
            high = tl.where(enough, middle, high)
            low = tl.where(enough, low, middle + 1)
    least = low.to(tl.int32)
    least = (least ^ ((least >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    return tl.maximum(least, largest + tl.minimum(tl.log(min_p), 0.0))


@triton.jit
def _mass_above(base, heat, largest, key, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr):
    """The sum of exp(x - largest) over scores above the one that `key` stands for."""
    mass = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, VOCABULARY, BLOCK):
        x = _scores(base, first, heat, VOCABULARY, BLOCK)
        mass += tl.where(_ordered(x) > key.to(tl.int32), tl.exp(x - largest), 0.0)
    return tl.sum(mass, axis=0)


@triton.jit
def _drawn(base, heat, threshold, key, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr):
    """The token of the largest score plus noise, as in sample.sample."""
    lane = tl.arange(0, BLOCK)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    token = lane
    for first in range(0, VOCABULARY, BLOCK):
        x = _scores(base, first, heat, VOCABULARY, BLOCK)
        noisy = x + _gumbel(_mixed(key + (first + lane).to(tl.int64) * _GOLDEN))
        better = (x >= threshold) & (noisy > best)
        best = tl.where(better, noisy, best)
        token = tl.where(better, first + lane, token)
    largest = tl.max(best, axis=0)
    return tl.min(tl.where(best == largest, token, VOCABULARY), axis=0).to(tl.int64)


@triton.jit
def _mixed(x):
    """sample._mixed."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * _MIX_A
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * _MIX_B
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


@triton.jit
def _gumbel(bits):
    """sample.gumbel_of."""
    v = (((bits >> 32) & 0xFFFFFFFF).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    v = tl.minimum(v, 0.99999994)
    return -tl.log(tl.where(v < _SMALL, v + v * v / 2, -tl.log(1 - v)))
