"""The offline interface: batches, streams, stop strings, and what happens when a loop is left."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from engine.config import ConfigError
from engine.serving.llm import LLM
from engine.serving.request import SamplingParams
from tests.engine.oracle import oracle_greedy, random_tensors, tiny_config, write_folder

CONFIG = tiny_config(vocab_size=256, eos_token_ids=())
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose ids are bytes."""
    place = write_folder(CONFIG, tmp_path_factory.mktemp("tiny"))
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(LETTERS)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(place / "tokenizer.json"))
    (place / "tokenizer_config.json").write_text(json.dumps({}))
    return place


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(folder, device="cpu", dtype="float64", kv_cache_bytes=1 << 20, max_num_seqs=4)


WEIGHTS = {name: tensor.float().double() for name, tensor in random_tensors(CONFIG).items()}


def expected(prompt_ids: list[int], tokens: int) -> list[int]:
    return oracle_greedy(CONFIG, WEIGHTS, prompt_ids, tokens, ())


def test_text_and_ids_in_one_batch_more_than_run_at_once(llm: LLM) -> None:
    prompts: list[str | list[int]] = ["Hello", [5, 6, 7], "abc", [1], "x y", "zz"]
    outputs = llm.generate(prompts, SamplingParams(max_tokens=12))
    for prompt, output in zip(prompts, outputs, strict=True):
        ids = llm.tokenizer.encode(prompt).ids if isinstance(prompt, str) else prompt
        assert output.prompt_ids == ids
        assert output.token_ids == expected(ids, 12)
        assert output.text == llm.tokenizer.decode(output.token_ids)
        assert output.finish_reason == "length"
    llm.engine.check()


def test_each_prompt_may_have_parameters_of_its_own(llm: LLM) -> None:
    short, long = llm.generate(
        ["ab", "ab"], [SamplingParams(max_tokens=2), SamplingParams(max_tokens=5, logprobs=1)]
    )
    assert (len(short.token_ids), len(long.token_ids), len(long.logprobs)) == (2, 5, 5)
    assert short.logprobs == []


def test_a_stream_joined_is_the_text_and_says_when_each_prompt_ends(llm: LLM) -> None:
    whole = llm.generate(["Hello", "abc"], SamplingParams(max_tokens=9))
    texts, ends = {0: "", 1: ""}, []
    for piece in llm.stream(["Hello", "abc"], SamplingParams(max_tokens=9)):
        texts[piece.index] += piece.text
        ends += [piece.index] if piece.finish_reason else []
    assert [texts[0], texts[1]] == [output.text for output in whole]
    assert sorted(ends) == [0, 1]


def test_a_stop_string_ends_its_prompt_alone_and_is_not_shown(llm: LLM) -> None:
    free = llm.generate(["Hello"], SamplingParams(max_tokens=24))[0].text
    stop = free[6:9]
    cut, other = llm.generate(["Hello", "Hello"], [
        SamplingParams(max_tokens=24, stop=(stop,)), SamplingParams(max_tokens=24),
    ])  # fmt: skip
    assert cut.text == free[: free.index(stop)]
    assert cut.finish_reason == "stop" and len(cut.token_ids) < 24
    assert other.text == free
    assert not llm.engine.has_work


def test_leaving_a_stream_early_cancels_the_rest(llm: LLM) -> None:
    stream = llm.stream(["Hello", "abc", "x"], SamplingParams(max_tokens=100))
    next(stream)
    stream.close()
    assert not llm.engine.has_work
    assert llm.engine.stats()["kv_blocks_used"] == 0
    assert llm.generate([[5, 6, 7]], SamplingParams(max_tokens=3))[0].token_ids == expected([5, 6, 7], 3)


def test_a_bad_prompt_is_refused_before_any_other_runs(llm: LLM) -> None:
    with pytest.raises(ConfigError, match="token id 999 is outside the vocabulary of 256"):
        llm.generate(["good", [999]], SamplingParams(max_tokens=4))
    with pytest.raises(ConfigError, match="2 prompts, but 1 sampling parameters"):
        llm.generate(["a", "b"], [SamplingParams()])
    assert not llm.engine.has_work


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_tokens": 0}, r"max_tokens is 0; it lies in \[1, inf\]"),
        ({"min_tokens": 17}, r"min_tokens is 17; it lies in \[0, 16\]"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"top_p": 1.5}, r"top_p is 1.5; it lies in \[0, 1\]"),
        ({"seed": 1 << 63}, "seed is 9223372036854775808"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
        ({"logprobs": 21}, r"logprobs is 21; it lies in \[0, 20\]"),
    ],
)
def test_parameters_out_of_range_are_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SamplingParams(**values)


def test_a_closed_llm_says_so(folder: Path) -> None:
    with LLM(folder, device="cpu", kv_cache_bytes=1 << 20, max_num_seqs=4) as llm:
        assert len(llm.generate(["a"], SamplingParams(max_tokens=1))) == 1
    with pytest.raises(ConfigError, match="closed"):
        llm.generate(["a"])
