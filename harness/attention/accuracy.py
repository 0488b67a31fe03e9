"""How far a result is from float64, beside eager attention in the same number format.

Compared is one sequence, the last of equal ones (where offsets are largest) or the longest of packed ones,
and in it the last KV head with its query heads. The measure is the largest absolute difference, tensor by
tensor, as in the tests of FlashAttention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from harness.attention.formulas import Direction, Shape
from harness.attention.naive import naive

# Up to here all rows are compared. Beyond, the last ones: they see every key.
MOST_ROWS = 16_384
LAST_ROWS = 1024
# Rows whose scores in float64 lie in memory at once: 1 GB a head at 131,072 keys.
ROWS_AT_ONCE = 1024


@dataclass(frozen=True)
class Inputs:
    """Flat tensors of one shape: query and its gradient (T, H, D), key and value (T, K, D)."""

    query: Tensor
    key: Tensor
    value: Tensor
    grad_out: Tensor


@dataclass(frozen=True)
class Error:
    """Largest differences from float64 of the tensor that is worst in their ratio."""

    own: float
    reference: float


@dataclass(frozen=True)
class Truth:
    """What float64 says, and how far the eager result is from it, tensor by tensor."""

    rows: int
    exact: tuple[Tensor, ...]
    reference_errors: tuple[float, ...]

    def error(self, results: Sequence[Tensor]) -> Error:
        """Of results cut by `cut`."""
        own = [_difference(*pair) for pair in zip(results, self.exact, strict=True)]
        pairs = zip(own, self.reference_errors, strict=True)
        return Error(*max(pairs, key=lambda pair: _ratio(*pair)))


def checked_rows(shape: Shape) -> int:
    """Query rows of the sequence that are compared."""
    return shape.seq if shape.seq <= MOST_ROWS else LAST_ROWS


def cut(direction: Direction, shape: Shape, results: Sequence[Tensor]) -> list[Tensor]:
    """The compared part of an output, or of the gradients of query, key and value: (heads, rows, D) each.

    The gradients of key and value come from all rows: without those there is nothing to compare them with.
    """
    rows = checked_rows(shape)
    own = _sequence(shape)
    parts = [results[0].flatten(0, -3)[own][-rows:, -shape.group :].transpose(0, 1)]
    if direction == "backward" and rows == shape.seq:
        parts += [result.flatten(0, -3)[own][:, -1:].transpose(0, 1) for result in results[1:]]
    return parts


def truth(direction: Direction, shape: Shape, inputs: Inputs) -> Truth:
    """Computes both for a dense or packed shape."""
    own, rows = _sequence(shape), checked_rows(shape)
    query, grad_out = (
        tensor[own][-rows:, -shape.group :].transpose(0, 1) for tensor in (inputs.query, inputs.grad_out)
    )
    key, value = (tensor[own][:, -1:].transpose(0, 1) for tensor in (inputs.key, inputs.value))
    return truth_of(direction, shape.causal, query, key, value, grad_out)


def truth_of(
    direction: Direction, causal: bool, query: Tensor, key: Tensor, value: Tensor, grad_out: Tensor
) -> Truth:
    """query, grad_out: (heads, R, D) of the last R rows; key, value: (1, S, D)."""
    wide = [tensor.double() for tensor in (query, key, value, grad_out)]
    exact = _results(direction, causal, *wide, ROWS_AT_ONCE)
    eager = _results(direction, causal, query, key, value, grad_out, query.shape[1])
    if query.shape[1] < key.shape[1] and direction == "backward":
        exact, eager = exact[:1], eager[:1]
    return Truth(query.shape[1], exact, tuple(map(_difference, eager, exact)))


def _results(
    direction: Direction, causal: bool, query: Tensor, key: Tensor, value: Tensor, grad_out: Tensor, step: int
) -> tuple[Tensor, ...]:
    """Output, or gradients, `step` rows at a time."""
    with_gradients = direction == "backward"
    leaves = [tensor.detach().requires_grad_(with_gradients) for tensor in (query, key, value)]
    rows, seq = query.shape[1], key.shape[1]
    outputs = []
    for start in range(0, rows, step):
        stop = min(rows, start + step)
        seen = seq - rows + stop if causal else seq
        out = naive(leaves[0][:, start:stop], leaves[1][:, :seen], leaves[2][:, :seen], causal)
        if with_gradients:
            out.backward(grad_out[:, start:stop])
        outputs.append(out.detach())
    if with_gradients:
        return tuple(leaf.grad for leaf in leaves)
    return (torch.cat(outputs, dim=1),)


def _sequence(shape: Shape) -> slice:
    lengths = shape.lengths or (shape.seq,) * shape.batch
    last_longest = max(range(len(lengths)), key=lambda number: (lengths[number], number))
    stop = list(accumulate(lengths))[last_longest]
    return slice(stop - lengths[last_longest], stop)


def _difference(result: Tensor, exact: Tensor) -> float:
    return (result.double() - exact).abs().max().item()


def _ratio(own: float, reference: float) -> float:
    """NaN is worst of all; an exact reference leaves no room."""
    if own != own:
        return float("inf")
    return own / reference if reference else float(own > 0) * 1e30
