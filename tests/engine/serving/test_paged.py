"""Paged steps without a GPU: what travels with a step, when its memory is free again, and what is padded."""

from collections import Counter

import pytest

from engine.serving import paged
from engine.serving.engine import Engine
from engine.serving.plan import Plan
from engine.serving.request import SamplingParams
from engine.serving.runner import Runner
from engine.serving.staging import Staging
from engine.serving.step_inputs import Shape
from tests.engine.serving.test_engine import expected, make_engine, prompts, run

PARAMS = SamplingParams(max_tokens=8)


def paged_engine(**changes: object) -> Engine:
    engine = make_engine(**changes)
    engine.runner = Runner(engine.config, engine.runner.model, paged=True)
    return engine


def assert_right(engine: Engine, texts: list[list[int]]) -> None:
    for i, prompt in enumerate(texts):
        engine.add(i, prompt, PARAMS)
    results = run(engine)
    assert [results[i][0] for i in range(len(texts))] == [expected(prompt, PARAMS) for prompt in texts]


def test_more_changes_than_travel_with_a_step_go_ahead_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged, "_CHANGES", 64)
    engine = paged_engine(queue_depth=2, max_batched_tokens=64)
    tables, counts = engine.runner.tables, []
    changes = tables.changes

    def counted(plan: Plan) -> tuple:
        found = changes(plan)
        counts.append(len(found[0]))
        return found

    monkeypatch.setattr(tables, "changes", counted)
    assert_right(engine, prompts(8, seed=11))
    assert max(counts) > 64 > min(counts)


def test_staging_of_a_queued_step_is_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = paged_engine(queue_depth=4)
    inputs, depths = engine.runner._paged, []
    send = inputs.send

    def checked(plan: Plan, shape: Shape) -> Staging:
        staging = send(plan, shape)
        queued = [step.staging for step in engine.runner._launched]
        assert staging not in queued
        depths.append(len(queued))
        return staging

    monkeypatch.setattr(inputs, "send", checked)
    assert_right(engine, prompts(12, seed=1))
    assert max(depths) == 3
    assert len(inputs._idle) == 4


@pytest.mark.parametrize(
    ("params", "captured"),  # None: some steps
    [
        (SamplingParams(max_tokens=4), True),
        (SamplingParams(max_tokens=4, ignore_eos=True, stop_token_ids=(5,)), True),
        (SamplingParams(max_tokens=4, temperature=0.5), True),
        (SamplingParams(max_tokens=4, min_tokens=2), True),
        (SamplingParams(max_tokens=4, logprobs=0), True),
        (SamplingParams(max_tokens=4, logprobs=2, temperature=0.5, top_p=0.9), True),
        (SamplingParams(max_tokens=4, logprobs=2, frequency_penalty=0.5), False),
        (SamplingParams(max_tokens=4, prompt_logprobs=2), None),
        (SamplingParams(max_tokens=4, repetition_penalty=1.1), True),
        (SamplingParams(max_tokens=4, logit_bias=((1, 1.0),)), True),
    ],
)
def test_which_steps_have_a_captured_shape(
    params: SamplingParams, captured: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, taken = paged_engine(), Counter()
    padded, step = engine.runner._padded.run, engine.runner._step
    monkeypatch.setattr(engine.runner._padded, "run", lambda shape: taken.update([True]) or padded(shape))
    monkeypatch.setattr(engine.runner, "_step", lambda *inputs: taken.update([False]) or step(*inputs))
    for i, prompt in enumerate(prompts(5, seed=3)):
        engine.add(i, prompt, params)
    run(engine)
    assert set(taken) == ({True, False} if captured is None else {captured})


def test_log_probabilities_of_padded_steps_are_those_of_exact_ones() -> None:
    asks = [
        SamplingParams(max_tokens=9, logprobs=3),
        SamplingParams(max_tokens=9, logprobs=0, temperature=0.9, seed=4),
        SamplingParams(max_tokens=9, logprobs=1, presence_penalty=0.7),
        SamplingParams(max_tokens=9),
    ]

    def told(engine: Engine) -> dict[int, list[float]]:
        for i, prompt in enumerate(prompts(8, seed=12)):
            engine.add(i, prompt, asks[i % 4])
        found: dict[int, list[float]] = {i: [] for i in range(8)}
        while engine.has_work:
            for update in engine.step():
                found[update.request_id] += update.token_ids
                wished = asks[update.request_id % 4].logprobs  # a mate may have wished for more
                for each in update.logprobs if wished is not None else ():
                    found[update.request_id] += [each.token, *each.top_ids[:wished], *each.top[:wished]]
        return found

    exact, padded = told(make_engine()), told(paged_engine(queue_depth=2))
    assert exact == {i: pytest.approx(values, rel=1e-5, abs=1e-6) for i, values in padded.items()}
    assert len(exact[0]) > 9 and len(exact[3]) <= 9


def test_a_prompt_whose_log_probabilities_are_asked_for_is_not_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, shapes = paged_engine(max_batched_tokens=16), []
    padded = engine.runner._padded.run
    monkeypatch.setattr(engine.runner._padded, "run", lambda shape: shapes.append(shape) or padded(shape))
    engine.add(0, list(range(1, 41)), SamplingParams(max_tokens=6, ignore_eos=True, prompt_logprobs=1))
    run(engine)
    assert len(shapes) == 5
    assert all(shape.longest_item == 1 for shape in shapes)
