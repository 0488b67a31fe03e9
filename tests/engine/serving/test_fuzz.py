"""Random schedules on a tiny random model against the float64 oracle, integrity checked after each step.

Arrivals, lengths, shared prefixes, priorities, seeds, stop ids, cancels, pool sizes that force preemption,
chunk budgets and queue depths all vary; whatever happens, each request's ids are those it gets alone.
"""

from dataclasses import dataclass
from functools import cache

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.kernels.sample import sample
from engine.model.llama import Llama
from engine.serving.engine import Engine
from engine.serving.request import Finish, SamplingParams
from tests.engine.oracle import oracle_logits, random_tensors, tiny_config

pytestmark = pytest.mark.usefixtures("either_runner")

CONFIG = tiny_config(num_layers=1, vocab_size=61)
WEIGHTS = random_tensors(CONFIG, seed=1)
MODEL = Llama(CONFIG, WEIGHTS, "cpu", torch.float64, 64)
# Prompts are cut from few texts, so that prefixes coincide and the oracle's answers can be kept.
TEXTS = [[(7 * i * i + 3 * i + text) % CONFIG.vocab_size for i in range(24)] for text in range(3)]


@dataclass(frozen=True)
class Job:
    arrival: int
    prompt: tuple[int, ...]
    params: SamplingParams
    priority: int
    cancel_after: int | None


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    text = draw(st.sampled_from(TEXTS))
    params = SamplingParams(
        max_tokens=draw(st.sampled_from([14, 1, 6, 14])),
        temperature=draw(st.sampled_from([0.0, 0.0, 0.8])),
        seed=draw(st.integers(0, 1)),
        ignore_eos=draw(st.booleans()),
        stop_token_ids=draw(st.sampled_from([(), (5, 17, 33)])),
    )
    return Job(
        arrival=draw(st.integers(0, 5)),
        prompt=tuple(text[: draw(st.sampled_from([1, 3, 4, 7, 8, 12, 17]))]),
        params=params,
        priority=draw(st.integers(0, 1)),
        cancel_after=draw(st.sampled_from([None, None, None, 0, 3, 9])),
    )


@st.composite
def engines(draw: st.DrawFn) -> EngineConfig:
    slots = draw(st.sampled_from([4, 1, 2, 6, 8]))
    return EngineConfig(
        device="cpu", dtype="float64", max_model_len=40,
        num_blocks=draw(st.sampled_from([9, 9, 10, 12, 18])), block_size=4,
        max_num_seqs=slots, max_batched_tokens=draw(st.integers(slots, 24)),
        queue_depth=draw(st.integers(1, 4)), prefix_cache=draw(st.booleans()),
    )  # fmt: skip


@cache
def alone(prompt: tuple[int, ...], params: SamplingParams) -> tuple[int, ...]:
    """What the request must yield: full recompute for each token, the sampler's formula on float64 logits."""
    stop = params.stop_token_ids if params.ignore_eos else (*CONFIG.eos_token_ids, *params.stop_token_ids)
    tokens = list(prompt)
    while len(tokens) < len(prompt) + params.max_tokens:
        tokens.append(_next(tuple(tokens), params.temperature, params.seed))
        if tokens[-1] in stop:
            break
    return tuple(tokens[len(prompt) :])


@cache
def _next(tokens: tuple[int, ...], temperature: float, seed: int) -> int:
    one = torch.ones(1)
    chosen = sample(
        oracle_logits(CONFIG, WEIGHTS, list(tokens))[-1:], one * temperature, one.long() * 0, one, one * 0,
        one.long() * seed, one.long() * len(tokens), filtered=False,
    )  # fmt: skip
    return int(chosen)


def play(config: EngineConfig, todo: list[Job]) -> int:
    """Run one schedule to its end and compare; returns how often a request was preempted."""
    engine = Engine(config, MODEL)
    got: dict[int, list[int]] = {i: [] for i in range(len(todo))}
    ends: dict[int, Finish] = {}
    for step in range(3000):
        for i, job in enumerate(todo):
            if job.arrival == step:
                engine.add(i, list(job.prompt), job.params, job.priority)
            if job.cancel_after is not None and job.arrival + job.cancel_after == step:
                engine.cancel(i)
        for update in engine.step():
            assert update.request_id not in ends, "news after the end"
            got[update.request_id] += update.token_ids
            if update.finish is not Finish.NOT_YET:
                ends[update.request_id] = update.finish
        engine.check()
        if step > 24 and not engine.has_work:
            break
    assert set(ends) == set(range(len(todo))), "a request never ended"
    assert engine.scheduler.pool.free == engine.scheduler.pool.capacity
    for i, job in enumerate(todo):
        want = alone(job.prompt, job.params)
        if ends[i] is Finish.CANCELLED:
            assert job.cancel_after is not None
            assert tuple(got[i]) == want[: len(got[i])]
        else:
            assert tuple(got[i]) == want
            assert ends[i] is (
                Finish.LENGTH if len(want) == job.params.max_tokens and not _stopped(job) else Finish.STOP
            )
    return engine.scheduler.preemptions


def _stopped(job: Job) -> bool:
    eos = () if job.params.ignore_eos else CONFIG.eos_token_ids
    return alone(job.prompt, job.params)[-1] in (*eos, *job.params.stop_token_ids)


def test_random_schedules_equal_the_oracle() -> None:
    preempted = []

    @settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(engines(), st.lists(jobs(), min_size=4, max_size=12))
    def some(config: EngineConfig, todo: list[Job]) -> None:
        preempted.append(play(config, todo))

    some()
    assert sum(map(bool, preempted)) >= 3, "the schedules are too gentle to prove anything of preemption"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
@given(engines(), st.lists(jobs(), min_size=1, max_size=14))
def test_two_thousand_random_schedules_equal_the_oracle(config: EngineConfig, todo: list[Job]) -> None:
    play(config, todo)
