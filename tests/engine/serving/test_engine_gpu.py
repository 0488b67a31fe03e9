"""The engine on a GPU: ids equal the float64 oracle, steps are captured, batch mates ignored."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from engine.config import EngineConfig
from engine.model.batch import GatheredBatch
from engine.model.llama import Llama
from engine.serving.engine import Engine
from engine.serving.request import Finish, SamplingParams
from engine.serving.runner import Runner
from engine.serving.step_inputs import Shape
from tests.engine.oracle import oracle_logits
from tests.engine.serving.test_engine import CONFIG, WEIGHTS, expected, make_engine, prompts, run

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

SHORT = SamplingParams(max_tokens=6, ignore_eos=True)


def gpu_engine(dtype: str, **changes: object) -> Engine:
    values: dict[str, object] = dict(
        device="cuda", dtype=dtype, max_model_len=128, num_blocks=64, block_size=4, max_num_seqs=8,
        max_batched_tokens=16, queue_depth=2, prefix_cache=True,
    )  # fmt: skip
    config = EngineConfig(**(values | changes))
    model = Llama(CONFIG, WEIGHTS, "cuda", getattr(torch, dtype), config.max_model_len)
    return Engine(config, model)


def large_engine(dtype: str = "float32", **changes: object) -> Engine:
    """Room for 256 sequences at once."""
    sizes = dict(num_blocks=4096, max_num_seqs=256, max_batched_tokens=1024, prefix_cache=False)
    return gpu_engine(dtype, **(sizes | changes))


def generated(engine: Engine, texts: list[list[int]], params: SamplingParams) -> list[list[int]]:
    for i, prompt in enumerate(texts):
        engine.add(i, prompt, params)
    results = run(engine)
    return [results[i][0] for i in range(len(texts))]


def count_replays(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Counter[Shape]:
    """Counts the graphs launched from now on; an eager step is an error."""
    used: Counter[Shape] = Counter()
    steps = engine.runner._padded
    replay = steps.run

    def counted(shape: Shape) -> torch.Tensor:
        assert shape in steps._captured, "a step was not captured"
        used[shape] += 1
        return replay(shape)

    def eager(*_: object) -> None:
        raise AssertionError("an eager step")

    monkeypatch.setattr(steps, "run", counted)
    monkeypatch.setattr(engine.runner, "_step", eager)
    return used


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_blocks": 16},
        {"queue_depth": 4, "max_batched_tokens": 64},
        {"num_blocks": 20, "queue_depth": 3, "prefix_cache": False},
    ],
)
def test_ids_equal_the_oracle(
    dtype: str, changes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mixed batches, chunked prompts, prefix hits and preemption, with every step a graph."""
    engine = gpu_engine(dtype, **changes)
    used = count_replays(engine, monkeypatch)
    params = SamplingParams(max_tokens=20)
    texts = prompts(12, seed=1, longest=30)
    assert generated(engine, texts, params) == [expected(prompt, params) for prompt in texts]
    assert {shape.longest_item > 1 for shape in used} == {True, False}
    assert engine.scheduler.preemptions > 0 or "num_blocks" not in changes


def test_prefix_hits_change_nothing() -> None:
    engine = gpu_engine("float32", max_batched_tokens=32)
    (shared,) = prompts(1, seed=3, longest=24)
    texts = [[*shared, *range(30, 46), token] for token in range(5)]
    want = [expected(prompt, SHORT) for prompt in texts]
    assert generated(engine, texts, SHORT) == want
    for i, prompt in enumerate(texts):
        engine.add(i, prompt, SHORT)
    cached = {update.request_id: update.cached_tokens for _ in range(30) for update in engine.step()}
    assert min(cached.values()) >= 16
    assert generated(engine, texts, SHORT) == want


def test_paged_and_gathered_steps_agree() -> None:
    texts, params = prompts(10, seed=4), SamplingParams(max_tokens=24, ignore_eos=True)
    paged, gathered = (gpu_engine("float32", max_batched_tokens=64) for _ in range(2))
    gathered.runner = Runner(gathered.config, gathered.runner.model, paged=False)
    assert generated(paged, texts, params) == generated(gathered, texts, params)


def test_every_batch_size_gives_the_same_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = large_engine()
    used = count_replays(engine, monkeypatch)
    few = prompts(24, seed=9)
    want = [expected(prompt, SHORT) for prompt in few]
    for size in (1, 2, 3, 5, 8, 9, 17, 31, 33, 64, 65, 100, 129, 200, 255, 256):
        ids = generated(engine, [few[i % 24] for i in range(size)], SHORT)
        assert ids == [want[i % 24] for i in range(size)], size
    assert {shape for shape in used if shape.longest_item == 1} == set(engine.runner._padded._decode)


def test_every_mixed_graph_is_used_and_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of one step that fill a graph to the last row, and that leave it all but one row short."""
    engine = large_engine(queue_depth=3)
    used = count_replays(engine, monkeypatch)
    (text,) = prompts(1, seed=12, longest=1)
    text = text + [(7 * i * i + i) % CONFIG.vocab_size for i in range(90)]
    first = replace(SHORT, max_tokens=2)
    sizes = [shape.rows for shape in engine.runner._padded._mixed]
    for before, rows in zip([0, *sizes], sizes, strict=False):
        for total in (before + 1, rows):
            texts = [text[:88]] * (total // 88) + ([text[: total % 88]] if total % 88 else [])
            assert generated(engine, texts, first) == [expected(prompt, first) for prompt in texts], total
    assert {shape for shape in used if shape.longest_item > 1} == set(engine.runner._padded._mixed)


def rounded_logits(tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (n, vocab) of a model with bf16 weights: in float64, and in bf16 as the CPU computes them."""
    weights = {name: tensor.bfloat16() for name, tensor in WEIGHTS.items()}
    exact = oracle_logits(CONFIG, {name: tensor.double() for name, tensor in weights.items()}, tokens)
    model = Llama(CONFIG, weights, "cpu", torch.bfloat16, len(tokens))
    positions, none = torch.arange(len(tokens)), torch.zeros(0, 0, dtype=torch.int64)
    shape = (CONFIG.num_layers, 2, len(tokens), CONFIG.num_kv_heads, CONFIG.head_dim)
    chunk = ((0, len(tokens), positions),)
    batch = GatheredBatch(torch.tensor(tokens), positions, positions, none, none.bool(), chunk)
    return exact, model.logits(model.forward(batch, torch.zeros(shape, dtype=torch.bfloat16)))


def test_bfloat16_ids_differ_at_near_ties_only() -> None:
    """A chosen token's exact logit may be below the best one by the rounding of two logits, no more: by
    twice what the CPU's bf16 logits keep to at nine of ten positions."""
    texts, params = prompts(24, seed=13), SamplingParams(max_tokens=24, ignore_eos=True)
    outputs = generated(gpu_engine("bfloat16", max_batched_tokens=48, queue_depth=3), texts, params)
    gaps, errors = [], []
    for prompt, ids in zip(texts, outputs, strict=True):
        exact, rounded = (part[len(prompt) - 1 : -1] for part in rounded_logits(prompt + ids))
        gaps.append(exact.amax(-1) - exact.gather(1, torch.tensor(ids)[:, None])[:, 0])
        errors.append((rounded - exact).abs().amax(-1))
    gap, error = torch.cat(gaps), torch.cat(errors)
    print(
        f"bf16: {(gap == 0).double().mean():.1%} exact, gap {gap.max():.3f}, error {error.quantile(0.9):.3f}"
    )
    assert gap.max() <= 2 * error.quantile(0.9)
    assert (gap == 0).double().mean() > 0.9


def test_logits_that_are_not_finite_end_that_request_alone() -> None:
    """Nor may the NaN left in its blocks reach their next owners, or the batch mates of padded rows."""
    texts, params = prompts(8, seed=8, longest=30), SamplingParams(max_tokens=30, ignore_eos=True)
    want = [expected(prompt, params) for prompt in texts]
    seen = {token for prompt, ids in zip(texts, want, strict=True) for token in (*prompt, *ids)}
    poisoned = next(token for token in range(CONFIG.vocab_size) if token not in seen)
    engine = gpu_engine("float32", num_blocks=96)
    # In place would poison the head, which shares the tensor; graphs have to be captured anew.
    model = engine.runner.model
    model.embedding = model.embedding.index_fill(0, torch.tensor([poisoned], device="cuda"), float("nan"))
    engine.runner = Runner(engine.config, model)
    engine.add(0, texts[0], params)
    engine.add(99, [poisoned] * 60, params)
    assert run(engine) == {0: (want[0], Finish.LENGTH), 99: ([], Finish.BROKEN)}
    assert generated(engine, texts, params) == want


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_everything_at_once_ends_and_frees_all_blocks(dtype: str) -> None:
    engine = gpu_engine(dtype, num_blocks=24, queue_depth=3)
    base = SamplingParams(max_tokens=16, temperature=0.9, top_p=0.9, repetition_penalty=1.1, logprobs=2)
    for i, prompt in enumerate(prompts(24, seed=2, longest=24)):
        engine.add(i, prompt, replace(base, seed=i, temperature=0.9 * (i % 2), min_tokens=i % 4))
    results = run(engine)
    assert len(results) == 24
    assert all(finish in (Finish.STOP, Finish.LENGTH) for _, finish in results.values())


def test_greedy_and_sampled_steps_follow_each_other() -> None:
    """Captured and eager steps over the same tables: a greedy request's ids do not change."""
    engine = gpu_engine("float32", queue_depth=3)
    texts, params = prompts(8, seed=14, longest=30), SamplingParams(max_tokens=24, ignore_eos=True)
    for i, prompt in enumerate(texts):
        wish = params if i % 4 else SamplingParams(max_tokens=3, temperature=1.0, seed=i, logprobs=1)
        engine.add(i, prompt, wish)
    results = run(engine)
    for i, prompt in enumerate(texts):
        assert i % 4 == 0 or results[i][0] == expected(prompt, params)


def test_a_mixture_of_wishes_is_captured_and_gives_the_ids_of_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """In fp64, where no rounding turns a draw; by the kernel here and by Sampler there."""
    wishes = [
        SamplingParams(max_tokens=12),
        SamplingParams(max_tokens=12, temperature=0.8, seed=1),
        SamplingParams(max_tokens=12, temperature=1.2, top_k=9, seed=2),
        SamplingParams(max_tokens=12, temperature=1.2, top_p=0.7, min_p=0.02, seed=3),
        SamplingParams(max_tokens=12, repetition_penalty=1.3, presence_penalty=0.2),
        SamplingParams(max_tokens=12, frequency_penalty=0.9, temperature=0.7, seed=4),
        SamplingParams(max_tokens=12, logit_bias=((3, 4.0), (9, -50.0)), temperature=0.7, seed=5),
        SamplingParams(max_tokens=12, min_tokens=9, stop_token_ids=(1, 2, 3, 4, 5)),
    ]
    texts = prompts(24, seed=31, longest=20)
    gpu, cpu = gpu_engine("float64", queue_depth=3), make_engine()
    count_replays(gpu, monkeypatch)
    for engine in (gpu, cpu):
        for i, prompt in enumerate(texts):
            engine.add(i, prompt, wishes[i % len(wishes)])
    assert run(gpu) == run(cpu)


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
