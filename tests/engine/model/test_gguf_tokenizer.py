"""Tokenizers out of GGUF metadata, on small vocabularies; the real one is in test_smollm2.py."""

from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from engine.model.checkpoint import CheckpointError
from engine.model.gguf_tokenizer import tokenizer_config, tokenizer_of
from tests.engine.model.made import byte_level_metadata

TEXTS = ["", " ", "the nation", "  12 34\n\t5", "naïve 日本語 🙂", "a<|turn|>b<|end|>", "x" * 50]


@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "default", "llama-bpe"])
@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_text_comes_back(pre: str, text: str) -> None:
    tokenizer = tokenizer_of(byte_level_metadata(400) | {"tokenizer.ggml.pre": pre} | no_bos())
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def no_bos() -> dict[str, Any]:
    return {"tokenizer.ggml.add_bos_token": False}


def made_of(*tokens: str, merges: tuple[str, ...], **more: Any) -> Tokenizer:
    """A byte-level tokenizer with these tokens after the 256 bytes."""
    vocab = [*sorted(ByteLevel.alphabet()), *tokens]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": vocab,
        "tokenizer.ggml.token_type": [1] * len(vocab),
        "tokenizer.ggml.merges": list(merges),
    }
    return tokenizer_of(metadata | {f"tokenizer.ggml.{name}": value for name, value in more.items()})


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("smollm", ["a", "ĠĠ", "1", "2", "3", "4"]),  # each digit alone, spaces before it together
        ("gpt-2", ["a", "Ġ", "Ġ", "12", "34"]),  # the last space belongs to the number
        ("llama-bpe", ["a", "Ġ", "Ġ", "12", "3", "4"]),  # three digits at most: 123 | 4
    ],
)
def test_how_numbers_are_split(pre: str, expected: list[str]) -> None:
    tokenizer = made_of("ĠĠ", "12", "34", merges=("Ġ Ġ", "1 2", "3 4"), pre=pre, add_bos_token=False)
    assert tokenizer.encode("a  1234").tokens == expected


def test_llama_3_takes_a_whole_word_before_any_merge() -> None:
    words, merges = ("ab", "bc", "abc"), ("b c",)
    llama_3 = made_of(*words, merges=merges, pre="llama-bpe", add_bos_token=False)
    assert llama_3.encode("abc").tokens == ["abc"]
    assert made_of(*words, merges=merges, pre="gpt-2").encode("abc").tokens == ["a", "bc"]


def test_added_tokens_stay_whole_and_only_control_tokens_are_special() -> None:
    vocab = [*sorted(ByteLevel.alphabet()), "<think>", "<|eot|>"]
    tokenizer = tokenizer_of(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.tokens": vocab,
            "tokenizer.ggml.token_type": [1] * 256 + [4, 3],
            "tokenizer.ggml.merges": [],
        }
    )
    ids = tokenizer.encode("<think>a<|eot|>").ids
    assert ids == [256, vocab.index("a"), 257]
    assert tokenizer.decode(ids) == "<think>a"


@pytest.mark.parametrize(
    ("pre", "flag", "begins"),
    [
        ("smollm", None, False),
        ("smollm", True, True),
        ("llama-bpe", None, True),
        ("llama-bpe", False, False),
    ],
)
def test_bos(pre: str, flag: bool | None, begins: bool) -> None:
    metadata = byte_level_metadata(300) | {"tokenizer.ggml.pre": pre}
    del metadata["tokenizer.ggml.add_bos_token"]
    if flag is not None:
        metadata["tokenizer.ggml.add_bos_token"] = flag
    tokenizer = tokenizer_of(metadata)
    assert (tokenizer.encode("hi").tokens[0] == "<|turn|>") is begins
    assert "<|turn|>" not in tokenizer.encode("hi", add_special_tokens=False).tokens


def sentence_piece_metadata(**more: Any) -> dict[str, Any]:
    """As llama.cpp writes a SentencePiece vocabulary: control tokens, bytes, pieces with falling scores."""
    pieces = {"▁": -9.0, "a": -8.0, "b": -8.5, "c": -8.6, "▁a": -3.0, "ab": -1.0, "bc": -2.0, "▁ab": -4.0}
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + list(pieces.values()),
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(pieces),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    } | {f"tokenizer.ggml.{name}": value for name, value in more.items()}


def test_sentence_piece_joins_the_best_scored_piece_first() -> None:
    tokenizer = tokenizer_of(sentence_piece_metadata())
    # ▁ a b c: "ab" (-1) is joined before "bc" (-2) and "▁a" (-3); then "▁ab" (-4).
    assert tokenizer.encode("abc").tokens == ["<s>", "▁ab", "c"]
    assert tokenizer.encode("a bc").tokens == ["<s>", "▁a", "▁", "bc"]


def test_sentence_piece_writes_unknown_letters_as_bytes_and_reads_them_back() -> None:
    tokenizer = tokenizer_of(sentence_piece_metadata())
    assert tokenizer.encode("aé").tokens == ["<s>", "▁a", "<0xC3>", "<0xA9>"]
    for text in ["abc", " a  b", "né 日本\n🙂", "a<0x0A>b"]:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_sentence_piece_without_prefix_space() -> None:
    tokenizer = tokenizer_of(sentence_piece_metadata(add_space_prefix=False, add_bos_token=False))
    assert tokenizer.encode("ab").tokens == ["ab"]
    assert tokenizer.decode(tokenizer.encode(" ab").ids) == " ab"


def test_config_names_the_special_tokens() -> None:
    metadata = sentence_piece_metadata() | {"tokenizer.chat_template": "{{ messages }}"}
    assert tokenizer_config(metadata, 2048) == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 2048,
        "clean_up_tokenization_spaces": False,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "chat_template": "{{ messages }}",
    }


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model": "bert"}, "tokenizer.ggml.model is 'bert'"),
        ({"model": None}, "tokenizer.ggml.model is None"),
        ({"pre": "qwen2"}, "tokenizer.ggml.pre is 'qwen2'"),
        ({"tokens": ["a", "a"]}, "2 tokens, only 1"),
    ],
)
def test_refused_by_name(change: dict[str, Any], named: str) -> None:
    changed = {f"tokenizer.ggml.{name}": value for name, value in change.items()}
    with pytest.raises(CheckpointError, match=named):
        tokenizer_of(byte_level_metadata(300) | changed)


@pytest.mark.parametrize("key", ["tokens", "token_type", "merges"])
def test_a_missing_key(key: str) -> None:
    metadata = byte_level_metadata(300)
    del metadata[f"tokenizer.ggml.{key}"]
    with pytest.raises(CheckpointError, match=f"tokenizer.ggml.{key} is missing"):
        tokenizer_of(metadata)
