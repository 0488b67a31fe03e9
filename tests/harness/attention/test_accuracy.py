"""What the error is over, and that it sees a fault wherever one is."""

import pytest
import torch

from harness.attention import accuracy
from harness.attention.accuracy import Inputs, cut, truth
from harness.attention.decode import random_cache
from harness.attention.formulas import Shape, packed
from harness.attention.naive import naive
from tests.engine.kernels.conftest import _interpreted

SHAPES = [
    Shape(causal=True, head_dim=16, heads=4, kv_heads=2, seq=24, batch=3),
    Shape(causal=False, head_dim=16, heads=2, kv_heads=2, seq=17, batch=2),
    packed((5, 40, 12), True, heads=4, kv_heads=1, head_dim=16),
]


def inputs(shape: Shape) -> Inputs:
    torch.manual_seed(1)
    query, grad_out = (torch.randn(shape.tokens, shape.heads, shape.head_dim) for _ in range(2))
    key, value = (torch.randn(shape.tokens, shape.kv_heads, shape.head_dim) for _ in range(2))
    return Inputs(query, key, value, grad_out)


def double_results(shape: Shape, given: Inputs) -> list[torch.Tensor]:
    """Output and gradients of all sequences in float64, by autograd over each as a whole."""
    leaves = [t.double().requires_grad_() for t in (given.query, given.key, given.value)]
    outs = []
    start = 0
    for length in shape.lengths or (shape.seq,) * shape.batch:
        q, k, v = (leaf[start : start + length].transpose(0, 1) for leaf in leaves)
        k, v = (t.repeat_interleave(shape.group, dim=0) for t in (k, v))
        outs.append(naive(q, k, v, shape.causal).transpose(0, 1))
        start += length
    out = torch.cat(outs)
    gradients = torch.autograd.grad(out, leaves, given.grad_out.double())
    flat = [out.detach(), *gradients]
    if shape.lengths:
        return flat
    return [tensor.unflatten(0, (shape.batch, shape.seq)) for tensor in flat]


@pytest.mark.parametrize("shape", SHAPES)
def test_exact_results_have_no_error_and_a_fault_in_any_tensor_shows(shape: Shape, monkeypatch):
    monkeypatch.setattr(accuracy, "ROWS_AT_ONCE", 7)
    given = inputs(shape)
    out, *gradients = double_results(shape, given)
    forward, backward = (truth(direction, shape, given) for direction in ("forward", "backward"))
    assert forward.error(cut("forward", shape, [out])).own < 1e-12
    found = backward.error(cut("backward", shape, gradients))
    assert found.own < 1e-12 < found.reference < 1e-4
    for number in range(3):
        wrong = [gradient.clone() for gradient in gradients]
        wrong[number].flatten(0, -3)[_last_row_of_longest(shape), -1, 3] += 0.5
        assert backward.error(cut("backward", shape, wrong)).own == pytest.approx(0.5, abs=1e-6)


def _last_row_of_longest(shape: Shape) -> int:
    return 44 if shape.lengths else shape.tokens - 1


def test_beyond_a_length_only_the_last_rows_are_compared(monkeypatch):
    monkeypatch.setattr(accuracy, "MOST_ROWS", 16)
    monkeypatch.setattr(accuracy, "LAST_ROWS", 6)
    shape = SHAPES[0]
    given = inputs(shape)
    out, *gradients = double_results(shape, given)
    backward = truth("backward", shape, given)
    assert (backward.rows, len(backward.exact)) == (6, 1)
    assert truth("forward", shape, given).error(cut("forward", shape, [out])).own < 1e-12
    assert backward.error(cut("backward", shape, gradients)).own < 1e-12


def test_a_result_that_is_not_a_number_is_the_worst():
    shape = SHAPES[0]
    given = inputs(shape)
    gradients = double_results(shape, given)[1:]
    gradients[1] = gradients[1] * float("nan")
    own = truth("backward", shape, given).error(cut("backward", shape, gradients)).own
    assert own != own


def test_a_decode_step_is_compared_with_its_own_history():
    shape = Shape(causal=False, head_dim=16, heads=4, kv_heads=2, seq=37, batch=3)
    cache = random_cache(shape, 8, torch.float32, "cpu", 5)
    out = cache.step("reference").run(None)
    exact = cache.truth()
    assert exact.error(cache.cut(out)).own < 1e-5
    cache.block_table[-1, 0] = 0
    assert exact.error(cache.cut(cache.step("reference").run(None))).own > 1e-2


@pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning")
@pytest.mark.parametrize("impl", ["triton_fused", "triton_invariant"])
def test_the_fused_step_rotates_and_writes_what_the_others_find_in_the_cache(impl):
    shape = Shape(causal=False, head_dim=16, heads=4, kv_heads=2, seq=37, batch=3)
    cache = random_cache(shape, 8, torch.float32, "cpu", 5)
    exact, keys, values = cache.truth(), cache.keys.clone(), cache.values.clone()
    cache.keys[cache.last_slots] = cache.values[cache.last_slots] = float("nan")
    with _interpreted():
        out = cache.step(impl).run(None)
    assert exact.error(cache.cut(out)).own < 1e-5
    torch.testing.assert_close(cache.keys, keys)
    torch.testing.assert_close(cache.values, values)
