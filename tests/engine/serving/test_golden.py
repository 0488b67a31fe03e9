"""Greedy output of the real model equals transformers' `generate`, token for token, in fp32.

The reference ids are kept (tests/engine/golden.py made them); the engine answers all prompts at once, so
that batching, chunking and admission are part of what is compared.
"""

import json

import pytest

from engine.serving.llm import LLM, Output
from engine.serving.request import SamplingParams
from engine.serving.runner import Runner
from tests.engine.golden import MAX_TOKENS, PATH

ANSWERS = json.loads(PATH.read_text())["answers"]


@pytest.fixture(scope="module", params=["gathered", "paged"])
def llm(request: pytest.FixtureRequest) -> LLM:
    llm = LLM("smollm2-135m", device="cpu", dtype="float32", kv_cache_bytes=1 << 29, max_num_seqs=32)
    if request.param == "paged":
        llm.engine.runner = Runner(llm.engine.config, llm.engine.runner.model, paged=True)
    return llm


def compare(outputs: list[Output], answers: list[dict]) -> None:
    for output, answer in zip(outputs, answers, strict=True):
        ids = output.token_ids[:-1] if output.finish_reason == "stop" else output.token_ids
        assert ids == answer["ids"]
        assert output.finish_reason == answer["finish"]


def test_eight_prompts_at_once(llm: LLM) -> None:
    compare(
        llm.generate([a["prompt"] for a in ANSWERS[:8]], SamplingParams(max_tokens=MAX_TOKENS)), ANSWERS[:8]
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_all_prompts_at_once_and_again_from_the_prefix_cache(llm: LLM) -> None:
    prompts, params = [answer["prompt"] for answer in ANSWERS], SamplingParams(max_tokens=MAX_TOKENS)
    compare(llm.generate(prompts, params), ANSWERS)
    again = llm.generate(prompts, params)
    compare(again, ANSWERS)
    assert all(output.cached_tokens > 0 for output in again)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_prompts_one_at_a_time(llm: LLM) -> None:
    for answer in ANSWERS[:16]:
        compare(llm.generate([answer["prompt"]], SamplingParams(max_tokens=MAX_TOKENS)), [answer])
