"""What a GPU's memory bandwidth and matmul rate allow for a load: the floor of its time, as a formula.

Symbols. Request i: p_i prompt tokens, of which c_i came from a prefix cache, and n_i generated tokens. Model:
L layers, h hidden, H query heads, K key/value heads, d head size, m intermediate, V vocabulary, w bytes of a
number. C requests in flight. B bytes/s, F FLOP/s.

    layers     P = L (2 h H d + 2 h K d + 3 h m + 2 h) + h     weights, norms included
    head       E = h V                                         read whole by each step, tied or not
    positions  T = sum_i (p_i - c_i + n_i - 1)                 the last generated token is fed to nothing
    steps      S = N / C, N = sum_i n_i                        a step gives each request in flight one token
    contexts   X = sum_i sum_{j=1}^{n_i - 1} (p_i + j)         positions that decode steps look back on
    pairs      A = X + sum_i (p_i (p_i + 1) - c_i (c_i + 1)) / 2     query and key; prefill is causal

    bytes  = w (S (P + E) + h T + 2 L K d X)                   weights; embedding rows; keys and values
    FLOPs  = 2 P T + 2 E N + 4 L H d A                         layers; head; attention
    floor  = max(bytes / B, FLOPs / F),   tokens/s allowed = N / floor

Bytes and FLOPs overlap perfectly, a prefill rides along in the steps that decode, activations and the writing
of keys and values cost nothing: what does the same work takes longer. B and F are measured, not those of a
datasheet, so a share near 1 tests them as well. After the roofline model of Williams, Waterman and Patterson,
CACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

BYTES_PER_NUMBER = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Peak:
    """What one GPU was seen to do, and how that was measured. Datasheet numbers would make shares smaller."""

    bytes_per_s: float
    flops_per_s: Mapping[str, float]
    origin: str


PEAKS: Mapping[str, Peak] = {
    "NVIDIA H200": Peak(
        bytes_per_s=4.19e12,
        flops_per_s={"bfloat16": 769e12},
        origin="both measured on one H200: a device-to-device copy, bytes read and written (datasheet "
        "4.8e12 B/s), and an 8,192^3 bf16 matmul of random numbers (datasheet 989e12 FLOP/s)",
    ),
}
"""By the name the driver gives the GPU. A GPU or number format that is not here has no share."""


@dataclass(frozen=True)
class Work:
    """Least work for a load: bytes that must be read, floating-point operations, tokens that come of it."""

    bytes: float
    flops: float
    tokens: int


def layer_parameters(shape: Mapping[str, int]) -> int:
    """P: all weights but the embedding and the head."""
    hidden, head_dim = shape["hidden"], shape["head_dim"]
    attention = 2 * hidden * head_dim * (shape["heads"] + shape["kv_heads"])
    layer = attention + 3 * hidden * shape["intermediate"] + 2 * hidden
    return shape["layers"] * layer + hidden


def parameters(shape: Mapping[str, int]) -> int:
    """All weights of the model; a tied head is the embedding and counts once."""
    return layer_parameters(shape) + (1 if shape["tied"] else 2) * shape["hidden"] * shape["vocab"]


def decode_step_bytes(shape: Mapping[str, int], dtype: str, contexts: np.ndarray) -> float:
    """Bytes of one decode step of sequences that look back on `contexts` positions each."""
    weights = layer_parameters(shape) + shape["hidden"] * shape["vocab"]
    numbers = weights + shape["hidden"] * len(contexts) + _kv_numbers(shape) * float(np.sum(contexts))
    return BYTES_PER_NUMBER[dtype] * numbers


def _kv_numbers(shape: Mapping[str, int]) -> int:
    """Numbers a position keeps in the cache."""
    return 2 * shape["layers"] * shape["kv_heads"] * shape["head_dim"]


def work(shape: Mapping[str, int], dtype: str, requests: pd.DataFrame, concurrency: float) -> Work:
    """Least work for `requests` (columns of schema.RequestRow) with `concurrency` in flight.

    Requests that failed are left out. Below one in flight a step still serves one.
    """
    done = requests[requests["status"] == "ok"]
    prompt, cached, generated = (
        done[name].fillna(0).to_numpy(dtype=np.float64)
        for name in ("prompt_tokens", "cached_tokens", "output_tokens")
    )
    tokens, positions = generated.sum(), (prompt - cached + generated - 1).sum()
    contexts = ((generated - 1) * (prompt + generated / 2)).sum()
    attended = contexts + ((prompt * (prompt + 1) - cached * (cached + 1)) / 2).sum()
    layers, head = layer_parameters(shape), shape["hidden"] * shape["vocab"]
    steps = tokens / max(1.0, concurrency)
    numbers = steps * (layers + head) + shape["hidden"] * positions + _kv_numbers(shape) * contexts
    attention_flops = 4 * shape["layers"] * shape["heads"] * shape["head_dim"] * attended
    flops = 2 * layers * positions + 2 * head * tokens + attention_flops
    return Work(BYTES_PER_NUMBER[dtype] * float(numbers), float(flops), int(tokens))


def floor_tokens_per_s(
    shape: Mapping[str, int], dtype: str, gpu: str | None, requests: pd.DataFrame, concurrency: float
) -> float | None:
    """Output tokens/s that one GPU allows for the load of `requests`, by the formula of this module.

    None where the shape, or the GPU's rate for this number format, is not known, or no request ended well.
    """
    peak = PEAKS.get(gpu or "")
    if not shape or peak is None or dtype not in peak.flops_per_s:
        return None
    least = work(shape, dtype, requests, concurrency)
    if least.tokens == 0:
        return None
    return least.tokens / max(least.bytes / peak.bytes_per_s, least.flops / peak.flops_per_s[dtype])


def roofline_share(
    shape: Mapping[str, int],
    dtype: str,
    gpu: str | None,
    requests: pd.DataFrame,
    tokens_per_s: float,
    concurrency: float,
) -> float | None:
    """`tokens_per_s` over what one GPU allows for this load; None where that is not known.

    `concurrency`: requests in flight, in an open loop their mean.
    """
    allowed = floor_tokens_per_s(shape, dtype, gpu, requests, concurrency)
    return None if allowed is None else tokens_per_s / allowed
