"""Pieces joined equal the decoding of all ids; characters and stop strings are never split or leaked.

Faults others had, met here: a stop string split over chunks leaks its first half (TGI#1254); odd or
out-of-range ids raise in an incremental decoder (vllm#17448, vllm#21951); decoding token by token breaks
characters (exo PR#1691).
"""

from collections.abc import Callable
from functools import cache, partial
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine.config import ConfigError
from engine.model.named import prepare
from engine.serving.detokenizer import REPLACEMENT, Detokenizer, StopStrings, detokenizer_factory

BYTE_ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


@cache
def byte_level() -> Tokenizer:
    """All 256 bytes, some longer tokens, special and plain added tokens."""
    longer = ["ĠhelloĊ", "Ã©", "âĤ", "¬Ã", "ðŁĺ"]
    vocab = {token: id for id, token in enumerate([*BYTE_ALPHABET, *longer])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True), AddedToken("¡é😀", special=True)])
    tokenizer.add_tokens(["added word", "ünd", "日本"])
    return tokenizer


@cache
def sentencepiece() -> Tokenizer:
    """Llama 2's decoder over words, every byte token and special tokens."""
    words = ["▁", "▁the", "the", "▁▁", "é", "日本", "<0xZZ>", ">", "<unk>"]
    tokens = ["<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    vocab = {token: id for id, token in enumerate(tokens)}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


@cache
def smollm2() -> Tokenizer:
    return Tokenizer.from_file(str(prepare("smollm2-135m") / "tokenizer.json"))


TOKENIZERS = {"byte_level": byte_level, "sentencepiece": sentencepiece, "smollm2": smollm2}


@cache
def factory(kind: str) -> Callable[[], Detokenizer]:
    return detokenizer_factory(TOKENIZERS[kind]())


def pieces(kind: str, ids: list[int]) -> list[str]:
    detokenizer = factory(kind)()
    return [*(detokenizer.push(id) for id in ids), detokenizer.finish()]


def byte_ids(kind: str, text: str) -> list[int]:
    """The ids that spell the UTF-8 bytes of `text`, one id a byte."""
    if kind == "sentencepiece":
        names = [f"<0x{byte:02X}>" for byte in text.encode()]
    else:
        spelling = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        names = [name for word, _ in spelling.pre_tokenize_str(text) for name in word]
    return [TOKENIZERS[kind]().token_to_id(name) for name in names]


def id_sequences(kind: str) -> st.SearchStrategy[list[int]]:
    """Any ids, with a fifth more than the vocabulary, mixed with those of real text."""
    tokenizer = TOKENIZERS[kind]()
    spell = (lambda text: tokenizer.encode(text).ids) if kind == "smollm2" else partial(byte_ids, kind)
    size = tokenizer.get_vocab_size()
    any_id = st.integers(0, size + size // 5).map(lambda id: [id])
    spelled = st.text(st.characters(codec="utf-8"), max_size=4).map(spell)
    return st.lists(any_id | spelled).map(lambda parts: list(chain.from_iterable(parts)))


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(deadline=None)
@given(data=st.data())
def test_joined_pieces_equal_decoding_all_ids(kind: str, data: st.DataObject) -> None:
    tokenizer, ids = TOKENIZERS[kind](), data.draw(id_sequences(kind))
    assert "".join(pieces(kind, ids)) == tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
@given(text=st.text(st.characters(codec="utf-8"), min_size=1))
def test_characters_come_whole(kind: str, text: str) -> None:
    got = pieces(kind, byte_ids(kind, text))
    assert "".join(got) == (text.removeprefix(" ") if kind == "sentencepiece" else text)
    if REPLACEMENT not in text:
        assert not any(REPLACEMENT in piece for piece in got)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_ids_beyond_the_vocabulary_and_special_tokens_have_no_text(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]()
    special = tokenizer.token_to_id(
        {"byte_level": "<|end|>", "sentencepiece": "</s>"}.get(kind, "<|im_end|>")
    )
    assert pieces(kind, [special, 10**6, special]) == ["", "", "", ""]


def test_byte_level_text_is_not_held_longer_than_its_character() -> None:
    assert pieces("byte_level", byte_ids("byte_level", "aé😀b")) == ["a", "", "é", "", "", "", "😀", "b", ""]


def test_an_unfinished_character_becomes_a_replacement_at_the_end() -> None:
    assert pieces("byte_level", byte_ids("byte_level", "é")[:1]) == ["", REPLACEMENT]


def test_another_decoder_is_refused_by_name() -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(ConfigError, match="WordPiece"):
        detokenizer_factory(tokenizer)


@given(
    chunks=st.lists(st.text("abc", max_size=4)),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_stop_strings_never_leak_and_hold_back_no_more_than_needed(
    chunks: list[str], stops: list[str]
) -> None:
    matcher, shown, fed = StopStrings(stops), "", ""
    for chunk in chunks:
        fed += chunk
        text, stopped = matcher.push(chunk)
        shown += text
        assert stopped == any(stop in fed for stop in stops)
        if stopped:
            assert shown == fed[: min(at for stop in stops if (at := fed.find(stop)) >= 0)]
            return
        held = fed[len(shown) :]
        assert fed == shown + held
        if held:
            assert any(stop.startswith(held) for stop in stops)
    assert shown + matcher.finish() == fed


def test_a_stop_string_across_chunks() -> None:
    matcher = StopStrings(["\n\nUser:"])
    assert [matcher.push(piece) for piece in ("Hi", "\n", "\nUs", "er", ": more")] == [
        ("Hi", False), ("", False), ("", False), ("", False), ("", True),
    ]  # fmt: skip
