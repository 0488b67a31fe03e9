"""Declared workloads: short forms, and refusal of values beyond their limits."""

import tomllib

import pytest
from pydantic import TypeAdapter, ValidationError

from harness.workload.declared import (
    ClosedLoad,
    EnglishPrompts,
    FixedLength,
    Lengths,
    Load,
    PoissonLoad,
    Prompts,
    TokenIdPrompts,
    UniformLength,
)

LENGTHS, LOAD, PROMPTS = TypeAdapter(Lengths), TypeAdapter(Load), TypeAdapter(Prompts)


def test_two_numbers_are_a_uniform_law() -> None:
    declared = tomllib.loads(
        'load = { shape = "poisson", rate_rps = 2 }\n'
        'prompts = { kind = "token_ids", length = [64, 192], ids = [5, 500] }\n'
        'output = { law = "fixed", tokens = 9 }'
    )
    assert LOAD.validate_python(declared["load"]) == PoissonLoad(rate_rps=2)
    want = TokenIdPrompts(length=UniformLength(low=64, high=192), ids=(5, 500))
    assert PROMPTS.validate_python(declared["prompts"]) == want
    assert LENGTHS.validate_python(declared["output"]) == FixedLength(tokens=9)
    assert PROMPTS.validate_python({"kind": "english"}) == EnglishPrompts()


def closed(**changes) -> dict:
    return {"shape": "closed", "concurrency": 2, "requests": 4} | changes


def ids(**changes) -> dict:
    return {"kind": "token_ids", "length": [8, 9]} | changes


@pytest.mark.parametrize(
    ("kind", "value", "named"),
    [
        (LENGTHS, [5, 4], "low 5 must be at most high 4"),
        (LENGTHS, [0, 4], "greater than or equal to 1"),
        (LENGTHS, [1, 2, 3], "[1, 2, 3] must be [low, high]"),
        (LENGTHS, [1, 10**7], "less than or equal to 1000000"),
        (LENGTHS, {"law": "fixed", "tokens": 0}, "greater than or equal to 1"),
        (LENGTHS, {"law": "fixed", "tokens": 5, "low": 1}, "low"),
        (LENGTHS, {"law": "normal", "tokens": 5}, "'fixed', 'uniform', 'lognormal', 'trace'"),
        (LENGTHS, {"law": "lognormal", "median": 9, "sigma": 0, "low": 1, "high": 9}, "greater than 0"),
        (
            LENGTHS,
            {"law": "lognormal", "median": 9, "sigma": 1, "low": 9, "high": 1},
            "low 9 must be at most",
        ),
        (LOAD, closed(concurrency=0), "greater than or equal to 1"),
        (LOAD, closed(concurrency=5), "requests 4 must be at least concurrency 5"),
        (LOAD, closed(start_over_s=-1), "greater than or equal to 0"),
        (LOAD, closed(rate_rps=1), "rate_rps"),
        (LOAD, {"shape": "poisson", "rate_rps": 0}, "greater than 0"),
        (LOAD, {"shape": "poisson", "rate_rps": float("nan")}, "finite"),
        (LOAD, {"shape": "poisson", "rate_rps": 2e6}, "less than or equal to 1000000"),
        (LOAD, {"shape": "gamma", "rate_rps": 1, "cv": 0}, "greater than or equal to 0.01"),
        (LOAD, {"shape": "gamma", "rate_rps": 1, "cv": 101}, "less than or equal to 100"),
        (LOAD, {"shape": "bursts", "rate_rps": 1, "size": 0}, "greater than or equal to 1"),
        (LOAD, {"shape": "steps", "rates_rps": [], "step_s": 1}, "at least 1 item"),
        (LOAD, {"shape": "steps", "rates_rps": [1, -1], "step_s": 1}, "greater than 0"),
        (LOAD, {"shape": "trace", "trace": "azure"}, "'azure_code'"),
        (LOAD, {"shape": "trace", "trace": "azure_code", "speed": 0}, "greater than 0"),
        (LOAD, {"shape": "trace", "trace": "agentic_coding"}, "agentic_coding has no arrival times"),
        (PROMPTS, ids(ids=[0, 255]), "ids [0, 255) must hold at least 256 ids"),
        (PROMPTS, ids(ids=[-1, 999]), "greater than or equal to 0"),
        (PROMPTS, ids(ids=[0, 2**31 + 1]), "less than or equal to 2147483648"),
        (PROMPTS, {"kind": "conversations", "turns": {"law": "trace"}}, "'fixed', 'uniform', 'lognormal'"),
        (PROMPTS, {"kind": "trace", "trace": "azure_conv", "speed": 2}, "speed 2 belongs to the load"),
        (
            PROMPTS,
            {"kind": "trace", "trace": "azure_conv", "max_total_tokens": 0},
            "greater than or equal to 1",
        ),
        (PROMPTS, {"kind": "french"}, "'english', 'token_ids', 'prefix_groups', 'conversations', 'trace'"),
    ],
)
def test_values_beyond_their_limits_are_named(kind: TypeAdapter, value: object, named: str) -> None:
    with pytest.raises(ValidationError) as caught:
        kind.validate_python(value)
    assert named in str(caught.value)


def test_declared_workloads_do_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        ClosedLoad(concurrency=1, requests=1).requests = 2
