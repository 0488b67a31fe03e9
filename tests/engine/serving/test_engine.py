"""The engine against the float64 oracle: whatever is batched, cut, preempted or shared, the ids are equal."""

import random
from dataclasses import replace
from functools import cache

import pytest
import torch

from engine.config import ConfigError, EngineConfig
from engine.model.llama import Llama
from engine.serving.engine import Engine
from engine.serving.request import Finish, SamplingParams
from tests.engine.oracle import oracle_greedy, oracle_logits, random_tensors, tiny_config

pytestmark = pytest.mark.usefixtures("either_runner")

CONFIG = tiny_config()
WEIGHTS = random_tensors(CONFIG)


def make_engine(**changes: object) -> Engine:
    values: dict[str, object] = dict(
        device="cpu", dtype="float64", max_model_len=128, num_blocks=64, block_size=4, max_num_seqs=8,
        max_batched_tokens=16, queue_depth=1, prefix_cache=True,
    )  # fmt: skip
    config = EngineConfig(**(values | changes))
    return Engine(config, Llama(CONFIG, WEIGHTS, "cpu", torch.float64, config.max_model_len))


def run(engine: Engine) -> dict[int, tuple[list[int], Finish]]:
    """Step until idle, checking integrity after each step; ids and finish per request."""
    ids: dict[int, list[int]] = {}
    finish: dict[int, Finish] = {}
    for _ in range(10_000):
        if not engine.has_work:
            break
        for update in engine.step():
            assert update.request_id not in finish, "news after the end"
            ids.setdefault(update.request_id, []).extend(update.token_ids)
            if update.finish is not Finish.NOT_YET:
                finish[update.request_id] = update.finish
        engine.check()
    assert not engine.has_work, "the engine makes no progress"
    assert engine.scheduler.pool.free == engine.scheduler.pool.capacity
    return {i: (ids.get(i, []), finish[i]) for i in finish}


def prompts(count: int, seed: int, longest: int = 40) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(CONFIG.vocab_size) for _ in range(rng.randint(1, longest))] for _ in range(count)]


def expected(prompt: list[int], params: SamplingParams) -> list[int]:
    stop = params.stop_token_ids if params.ignore_eos else (*CONFIG.eos_token_ids, *params.stop_token_ids)
    return list(_oracle(tuple(prompt), params.max_tokens, stop))


@cache
def _oracle(prompt: tuple[int, ...], max_tokens: int, stop: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(oracle_greedy(CONFIG, WEIGHTS, list(prompt), max_tokens, stop))


@pytest.mark.parametrize("queue_depth", [1, 2, 4])
@pytest.mark.parametrize("budget", [8, 64])
def test_batched_chunked_and_queued_ids_equal_the_oracle(queue_depth: int, budget: int) -> None:
    engine = make_engine(queue_depth=queue_depth, max_batched_tokens=budget)
    params = SamplingParams(max_tokens=20)
    texts = prompts(12, seed=1)
    for i, prompt in enumerate(texts):
        engine.add(i, prompt, params)
    results = run(engine)
    for i, prompt in enumerate(texts):
        want = expected(prompt, params)
        assert results[i] == (want, Finish.STOP if want[-1] in CONFIG.eos_token_ids else Finish.LENGTH)
    assert {finish for _, finish in results.values()} == {Finish.STOP, Finish.LENGTH}


@pytest.mark.parametrize("queue_depth", [1, 3])
def test_preemption_changes_nothing(queue_depth: int) -> None:
    engine = make_engine(num_blocks=16, queue_depth=queue_depth, prefix_cache=False)
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    texts = prompts(6, seed=2, longest=12)
    for i, prompt in enumerate(texts):
        engine.add(i, prompt, params)
    results = run(engine)
    assert engine.scheduler.preemptions > 0
    for i, prompt in enumerate(texts):
        assert results[i] == (expected(prompt, params), Finish.LENGTH)


def test_prefix_hits_change_nothing_and_are_counted() -> None:
    engine = make_engine()
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    shared = prompts(1, seed=3, longest=24)[0] + [5] * 16
    first, second = [*shared, 7, 8], [*shared, 9]
    engine.add(0, first, params)
    run(engine)
    engine.add(1, second, params)
    engine.add(2, first, params)
    cached = {}
    ids: dict[int, list[int]] = {1: [], 2: []}
    while engine.has_work:
        for update in engine.step():
            ids[update.request_id] += update.token_ids
            cached[update.request_id] = update.cached_tokens
        engine.check()
    assert ids == {1: expected(second, params), 2: expected(first, params)}
    full = len(shared) // 4 * 4
    assert cached[1] >= full and cached[2] >= full


def test_a_request_that_ends_with_its_first_token_leaves_its_prefix_behind() -> None:
    engine = make_engine()
    prompt, params = list(range(10, 31)), SamplingParams(max_tokens=1, ignore_eos=True)
    engine.add(0, prompt, params)
    run(engine)
    engine.add(1, prompt, params)
    (news,) = [update for _ in range(3) for update in engine.step()]
    assert news.cached_tokens == 20


def test_a_prompt_known_in_full_still_computes_one_token() -> None:
    engine = make_engine()
    prompt, params = list(range(10, 26)), SamplingParams(max_tokens=4, ignore_eos=True)
    for request_id in (0, 1):
        engine.add(request_id, prompt, params)
        assert run(engine)[request_id][0] == expected(prompt, params)


@pytest.mark.parametrize("queue_depth", [1, 3])
def test_cancel_at_every_moment_frees_everything_and_spares_the_others(queue_depth: int) -> None:
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    texts = prompts(4, seed=4)
    for moment in range(14):
        engine = make_engine(queue_depth=queue_depth)
        for i, prompt in enumerate(texts):
            engine.add(i, prompt, params)
        ids: dict[int, list[int]] = {i: [] for i in range(4)}
        ends: list[tuple[int, Finish]] = []
        for step in range(200):
            if step == moment:
                engine.cancel(2)
                engine.cancel(99)
            for update in engine.step():
                ids[update.request_id] += update.token_ids
                if update.finish is not Finish.NOT_YET:
                    ends.append((update.request_id, update.finish))
            engine.check()
            if not engine.has_work:
                break
        assert sorted(i for i, _ in ends) == [0, 1, 2, 3]
        assert engine.scheduler.pool.free == engine.scheduler.pool.capacity
        for i in (0, 1, 3):
            assert ids[i] == expected(texts[i], params)
        assert ids[2] == expected(texts[2], params)[: len(ids[2])]


def test_seeded_sampling_ignores_batch_mates_and_arrival_order() -> None:
    texts = prompts(6, seed=5)
    each = [
        SamplingParams(
            max_tokens=10, temperature=1.0, seed=i, top_k=0 if i % 2 else 20, top_p=0.9 if i % 3 else 1
        )
        for i in range(6)
    ]

    def ids(order: list[int], **options: object) -> dict[int, list[int]]:
        engine = make_engine(**options)
        for i in order:
            engine.add(i, texts[i], each[i])
        return {i: result[0] for i, result in run(engine).items()}

    together = ids(list(range(6)))
    assert ids([4, 2, 0, 5, 3, 1], max_batched_tokens=8, queue_depth=3) == together
    for i in range(6):
        assert ids([i])[i] == together[i]


def test_sampling_follows_the_distribution() -> None:
    """Total variation between drawn first tokens and the oracle's softmax: as small as chance allows."""
    prompt, draws = [11, 12, 13], 4000
    engine = make_engine(max_num_seqs=64, max_batched_tokens=256, num_blocks=256, prefix_cache=False)
    for seed in range(draws):
        engine.add(seed, prompt, SamplingParams(max_tokens=1, temperature=1.5, seed=seed))
    counts = torch.zeros(CONFIG.vocab_size, dtype=torch.float64)
    for ids, _ in run(engine).values():
        counts[ids[0]] += 1
    p = (oracle_logits(CONFIG, WEIGHTS, prompt)[-1] / 1.5).softmax(-1)
    distance = (counts / draws - p).abs().sum() / 2
    chance = (p * (1 - p) / draws).sqrt().sum() / 2
    assert distance < 1.5 * chance


def test_admission_by_priority_then_arrival() -> None:
    engine = make_engine(max_num_seqs=1)
    for i, priority in enumerate([1, 0, 1, -2]):
        engine.add(i, [7, 8], SamplingParams(max_tokens=2, ignore_eos=True), priority)
    assert list(run(engine)) == [3, 1, 0, 2]


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], SamplingParams(), "empty"),
        ([1, 97], SamplingParams(), "token id 97 is outside the vocabulary of 97"),
        ([-1], SamplingParams(), "token id -1"),
        ([1], SamplingParams(logit_bias=((97, 1.0),)), "token id 97 is outside"),
        (
            [1],
            SamplingParams(logit_bias=tuple((i % 97, 1.0) for i in range(301))),
            "301 entries; at most 300",
        ),
        ([1] * 100, SamplingParams(max_tokens=29), r"100 prompt tokens \+ max_tokens 29 = 129 exceed .* 128"),
        ([1] * 60, SamplingParams(max_tokens=4), "64 tokens need 16 KV blocks; there are 15"),
        ([1], SamplingParams(stop_token_ids=tuple(range(40))), "41 stop token ids; at most 32"),
    ],
)
def test_requests_that_can_never_run_are_refused(
    prompt: list[int], params: SamplingParams, message: str
) -> None:
    engine = make_engine(num_blocks=16)
    with pytest.raises(ConfigError, match=message):
        engine.add(0, prompt, params)
    assert not engine.has_work


def logits_after(tokens: list[int]) -> torch.Tensor:
    return oracle_logits(CONFIG, WEIGHTS, tokens)[-1]


@pytest.mark.parametrize("queue_depth", [1, 3])
def test_penalties_bias_and_min_tokens_follow_their_formulas(queue_depth: int) -> None:
    """Greedy under every modifier at once, against a loop that applies the formulas token by token; with
    steps queued ahead the newest tokens are known to the device only."""
    params = SamplingParams(
        max_tokens=24, min_tokens=12, repetition_penalty=1.3, presence_penalty=0.7, frequency_penalty=0.4,
        logit_bias=((0, 4.0), (17, 2.5), (86, -100.0)),
    )  # fmt: skip
    texts = prompts(3, seed=6)
    engine = make_engine(queue_depth=queue_depth)
    for i, prompt in enumerate(texts):
        engine.add(i, prompt, params)
    engine.add(3, texts[0], SamplingParams(max_tokens=24))
    results = run(engine)
    for i, prompt in enumerate(texts):
        output: list[int] = []
        while len(output) < params.max_tokens and (not output or output[-1] != 0):
            logits = logits_after(prompt + output)
            for token, addend in params.logit_bias:
                logits[token] += addend
            if len(output) < params.min_tokens:
                logits[0] = float("-inf")
            for token in set(prompt + output):
                logits[token] = logits[token] / 1.3 if logits[token] > 0 else logits[token] * 1.3
            for token in set(output):
                logits[token] -= 0.7 + 0.4 * output.count(token)
            output.append(int(logits.argmax()))
        assert results[i][0] == output
        assert len(output) >= params.min_tokens
    assert results[3][0] == expected(texts[0], SamplingParams(max_tokens=24))


def test_a_bias_ends_with_its_request() -> None:
    """The slot's next owner, in one step with a request that has a bias again, sees nothing of it."""
    plain = SamplingParams(max_tokens=6, ignore_eos=True)
    biased = replace(plain, logit_bias=((17, 100.0), (3, -5.0)))
    engine = make_engine(max_num_seqs=2)
    (prompt,) = prompts(1, seed=9)
    engine.add(0, prompt, biased)
    assert run(engine)[0][0] == [17] * 6
    engine.add(1, prompt, plain)
    engine.add(2, prompt, replace(biased, logit_bias=((5, 100.0),)))
    results = run(engine)
    assert (results[1][0], results[2][0]) == (expected(prompt, plain), [5] * 6)


@pytest.mark.parametrize("num_blocks", [64, 16])
def test_logprobs_of_output_and_prompt_match_the_oracle(num_blocks: int) -> None:
    """Also when the prompt is cut into chunks, is in the prefix cache, or is computed twice (16 blocks)."""
    engine = make_engine(num_blocks=num_blocks, max_batched_tokens=8)
    texts = prompts(5, seed=7, longest=20)
    asks = SamplingParams(max_tokens=20, ignore_eos=True, logprobs=3, prompt_logprobs=2)
    engine.add(9, texts[0], SamplingParams(max_tokens=1, ignore_eos=True))
    while engine.has_work:
        engine.step()
    for i, prompt in enumerate(texts):
        engine.add(i, prompt, asks)
    ids: dict[int, list[int]] = {i: [] for i in range(5)}
    output: dict[int, list] = {i: [] for i in range(5)}
    given: dict[int, list] = {i: [] for i in range(5)}
    while engine.has_work:
        for update in engine.step():
            ids[update.request_id] += update.token_ids
            output[update.request_id] += update.logprobs
            given[update.request_id] += update.prompt_logprobs
        engine.check()
    assert (engine.scheduler.preemptions > 0) == (num_blocks == 16)
    for i, prompt in enumerate(texts):
        assert ids[i] == expected(prompt, asks)
        assert (len(given[i]), len(output[i])) == (len(prompt) - 1, 20)
        logprobs = oracle_logits(CONFIG, WEIGHTS, prompt + ids[i]).log_softmax(-1)
        for position, (token, found) in enumerate(
            zip((prompt + ids[i])[1:], given[i] + output[i], strict=True)
        ):
            best = logprobs[position].topk(len(found.top_ids))
            assert found.token == pytest.approx(float(logprobs[position, token]), abs=1e-4)
            assert found.top == pytest.approx(best.values.tolist(), abs=1e-4)
            assert list(found.top_ids) == best.indices.tolist()


def test_logits_that_are_not_finite_end_that_request_alone() -> None:
    """Nor may the NaN left in its blocks reach their next owners."""
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    texts = prompts(9, seed=8, longest=30)
    want = {i: (expected(prompt, params), Finish.LENGTH) for i, prompt in enumerate(texts)}
    seen = {token for i, prompt in enumerate(texts) for token in (*prompt, *want[i][0])}
    poisoned = next(token for token in range(CONFIG.vocab_size) if token not in seen)
    engine = make_engine(num_blocks=96)
    model = engine.runner.model
    model.embedding = model.embedding.index_fill(0, torch.tensor([poisoned]), float("nan"))
    engine.add(0, texts[0], params)
    engine.add(99, [poisoned] * 60, params)
    assert run(engine) == {0: want[0], 99: ([], Finish.BROKEN)}
    for i, prompt in enumerate(texts):
        engine.add(i, prompt, params)
    assert run(engine) == want


@pytest.mark.parametrize(
    ("params", "allowed"),
    [
        (SamplingParams(max_tokens=1, temperature=1.0, top_k=3), lambda p: p >= p.topk(3).values[-1]),
        (SamplingParams(max_tokens=1, temperature=1.0, min_p=0.2), lambda p: p >= 0.2 * p.max()),
        (
            SamplingParams(max_tokens=1, temperature=1.0, top_p=0.5),
            lambda p: (p[None] * (p[None] > p[:, None])).sum(-1) < 0.5,
        ),
    ],
)
def test_filters_draw_from_all_of_their_set_and_nothing_else(params: SamplingParams, allowed: object) -> None:
    engine = make_engine(max_num_seqs=64, max_batched_tokens=256, num_blocks=256)
    prompt = [11, 12, 13]
    for seed in range(1500):
        engine.add(seed, prompt, replace(params, seed=seed))
    drawn = {ids[0] for ids, _ in run(engine).values()}
    p = logits_after(prompt).softmax(-1)
    want = set(allowed(p).nonzero()[:, 0].tolist())
    likely = {token for token in want if p[token] / sum(p[t] for t in want) > 0.01}
    assert likely <= drawn <= want
    assert len(want) > 1
