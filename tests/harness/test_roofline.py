"""The floor of a load, against numbers worked out by hand and from elsewhere."""

import numpy as np
import pandas as pd
import pytest

from harness.roofline import (
    PEAKS,
    decode_step_bytes,
    floor_tokens_per_s,
    layer_parameters,
    parameters,
    roofline_share,
    work,
)

LLAMA_190M = dict(
    layers=20, hidden=768, heads=12, kv_heads=12, head_dim=64, intermediate=2048, vocab=32_000, tied=0
)
LLAMA_1B = dict(
    layers=16, hidden=2048, heads=32, kv_heads=8, head_dim=64, intermediate=8192, vocab=128_256, tied=1
)
SMOLLM2 = dict(
    layers=30, hidden=576, heads=9, kv_heads=3, head_dim=64, intermediate=1536, vocab=49_152, tied=1
)
TINY = dict(layers=1, hidden=2, heads=1, kv_heads=1, head_dim=2, intermediate=3, vocab=5, tied=1)
H200 = "NVIDIA H200"


def load(*lengths, status="ok", cached=None):
    """Requests of (prompt, output) tokens."""
    return pd.DataFrame(
        {
            "prompt_tokens": pd.array([prompt for prompt, _ in lengths], dtype="Int64"),
            "output_tokens": pd.array([output for _, output in lengths], dtype="Int64"),
            "cached_tokens": pd.array([cached] * len(lengths), dtype="Int64"),
            "status": [status] * len(lengths),
        }
    )


@pytest.mark.parametrize(
    ("shape", "millions"), [(LLAMA_190M, 190.74), (LLAMA_1B, 1235.81), (SMOLLM2, 134.52)]
)
def test_parameters_are_those_of_the_models(shape, millions):
    assert parameters(shape) / 1e6 == pytest.approx(millions, abs=0.01)


@pytest.mark.parametrize(
    ("shape", "batch", "milliseconds"),
    [
        (LLAMA_190M, 1, 0.081),
        (LLAMA_190M, 64, 0.311),
        (LLAMA_190M, 256, 1.014),
        (LLAMA_1B, 1, 0.577),
        (LLAMA_1B, 64, 0.700),
        (LLAMA_1B, 256, 1.074),
    ],
)
def test_decode_steps_take_the_known_floors_at_4_3_tb_per_s(shape, batch, milliseconds):
    """256 tokens of context, bf16."""
    seconds = decode_step_bytes(shape, "bfloat16", np.full(batch, 256)) / 4.3e12
    assert seconds * 1000 == pytest.approx(milliseconds, abs=5.1e-4)


def test_work_by_hand():
    """P = 2*2*2*2 + 3*2*3 + 2*2 + 2 = 40, E = 10. One request, 3 prompt and 2 output tokens: 4 positions go
    through the layers, the one decode step looks back on 4; pairs 1+2+3 in the prefill and 4."""
    assert layer_parameters(TINY) == 40
    found = work(TINY, "bfloat16", load((3, 2)), concurrency=1)
    assert found.tokens == 2
    assert found.bytes == 2 * (2 * (40 + 10) + 2 * 4 + 2 * 1 * 1 * 2 * 4)
    assert found.flops == 2 * 40 * 4 + 2 * 10 * 2 + 4 * 1 * 1 * 2 * 10


def test_contexts_of_decode_steps_add_up():
    """Of 10 prompt and 4 output tokens the decode steps look back on 11, 12 and 13."""
    kept = 2 * TINY["layers"] * TINY["kv_heads"] * TINY["head_dim"]
    weights = 4 * 50 + TINY["hidden"] * 13
    assert work(TINY, "float32", load((10, 4)), 1).bytes == 4 * (weights + kept * (11 + 12 + 13))


def test_weights_are_read_once_a_step_for_all_in_flight():
    alone, together = (work(LLAMA_190M, "bfloat16", load((100, 50)), c).bytes for c in (1, 50))
    step = 2 * (layer_parameters(LLAMA_190M) + 768 * 32_000)
    assert alone - together == pytest.approx(49 * step)
    assert work(LLAMA_190M, "bfloat16", load((100, 50)), 0.2).bytes == alone


def test_an_untied_embedding_is_stored_and_not_read():
    untied, tied = (LLAMA_190M | {"tied": tied} for tied in (0, 1))
    assert parameters(untied) - parameters(tied) == 768 * 32_000
    assert work(untied, "bfloat16", load((9, 9)), 4) == work(tied, "bfloat16", load((9, 9)), 4)


def test_cached_prompt_tokens_are_not_computed_again():
    whole, half = (work(TINY, "bfloat16", load((8, 1), cached=cached), 1) for cached in (None, 4))
    assert whole.flops - half.flops == 2 * 40 * 4 + 4 * 1 * 1 * 2 * (1 + 2 + 3 + 4)


def test_a_long_prompt_is_bound_by_flops_and_a_long_answer_by_bytes():
    peak = PEAKS[H200]
    prompt, answer = load((4000, 1)), load((10, 500))
    of_prompt, of_answer = (work(LLAMA_1B, "bfloat16", of, 64) for of in (prompt, answer))
    assert floor_tokens_per_s(LLAMA_1B, "bfloat16", H200, prompt, 64) == pytest.approx(
        peak.flops_per_s["bfloat16"] / of_prompt.flops
    )
    assert floor_tokens_per_s(LLAMA_1B, "bfloat16", H200, answer, 64) == pytest.approx(
        500 * peak.bytes_per_s / of_answer.bytes
    )


def test_the_share_is_of_what_is_allowed():
    requests = load((128, 64), (100, 32))
    allowed = floor_tokens_per_s(LLAMA_190M, "bfloat16", H200, requests, 8)
    assert roofline_share(LLAMA_190M, "bfloat16", H200, requests, allowed / 4, 8) == pytest.approx(0.25)
    assert 8 / 0.12e-3 < allowed < 8 / 0.08e-3, "one step of 8 sequences takes about 0.1 ms"


def test_failed_requests_are_no_work():
    both = pd.concat([load((128, 64)), load((128, 64), status="timeout")])
    assert work(TINY, "bfloat16", both, 1) == work(TINY, "bfloat16", load((128, 64)), 1)


@pytest.mark.parametrize(
    ("shape", "dtype", "gpu", "requests"),
    [
        ({}, "bfloat16", H200, load((8, 8))),
        (TINY, "float32", H200, load((8, 8))),
        (TINY, "bfloat16", "NVIDIA GeForce RTX 4090", load((8, 8))),
        (TINY, "bfloat16", None, load((8, 8))),
        (TINY, "bfloat16", H200, load()),
        (TINY, "bfloat16", H200, load((8, 8), status="reset")),
    ],
)
def test_what_is_not_known_has_no_share(shape, dtype, gpu, requests):
    assert roofline_share(shape, dtype, gpu, requests, 100.0, 4) is None


def test_each_peak_says_how_it_was_measured():
    assert all("measured" in peak.origin for peak in PEAKS.values())
