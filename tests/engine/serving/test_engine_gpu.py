"""The engine on a GPU: ids equal the float64 oracle, steps are queued on the stream, batch mates ignored."""

from dataclasses import replace

import pytest
import torch

from engine.config import EngineConfig
from engine.model.llama import Llama
from engine.serving.engine import Engine
from engine.serving.request import Finish, SamplingParams
from tests.engine.serving.test_engine import CONFIG, WEIGHTS, expected, prompts, run

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def gpu_engine(dtype: str, **changes: object) -> Engine:
    values: dict[str, object] = dict(
        device="cuda", dtype=dtype, max_model_len=128, num_blocks=64, block_size=4, max_num_seqs=8,
        max_batched_tokens=16, queue_depth=2, prefix_cache=True,
    )  # fmt: skip
    config = EngineConfig(**(values | changes))
    model = Llama(CONFIG, WEIGHTS, "cuda", getattr(torch, dtype), config.max_model_len)
    return Engine(config, model)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("changes", [{}, {"num_blocks": 16}, {"queue_depth": 4, "max_batched_tokens": 64}])
def test_ids_equal_the_oracle(dtype: str, changes: dict[str, object]) -> None:
    engine = gpu_engine(dtype, **changes)
    params = SamplingParams(max_tokens=20)
    texts = prompts(12, seed=1, longest=30)
    for i, prompt in enumerate(texts):
        engine.add(i, prompt, params)
    results = run(engine)
    assert {i: ids for i, (ids, _) in results.items()} == {
        i: expected(prompt, params) for i, prompt in enumerate(texts)
    }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_everything_at_once_ends_and_frees_all_blocks(dtype: str) -> None:
    engine = gpu_engine(dtype, num_blocks=24, queue_depth=3)
    base = SamplingParams(max_tokens=16, temperature=0.9, top_p=0.9, repetition_penalty=1.1, logprobs=2)
    for i, prompt in enumerate(prompts(24, seed=2, longest=24)):
        engine.add(i, prompt, replace(base, seed=i, temperature=0.9 * (i % 2), min_tokens=i % 4))
    results = run(engine)
    assert len(results) == 24
    assert all(finish in (Finish.STOP, Finish.LENGTH) for _, finish in results.values())


def test_seeded_sampling_ignores_batch_mates() -> None:
    texts = prompts(6, seed=5)
    each = [SamplingParams(max_tokens=10, temperature=1.0, seed=i) for i in range(6)]

    def ids(members: list[int]) -> dict[int, list[int]]:
        engine = gpu_engine("float64")
        for i in members:
            engine.add(i, texts[i], each[i])
        return {i: result[0] for i, result in run(engine).items()}

    together = ids(list(range(6)))
    for i in range(6):
        assert ids([i])[i] == together[i]
