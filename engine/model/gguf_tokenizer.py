"""A HuggingFace tokenizer (tokenizer.json, tokenizer_config.json) out of a GGUF file's metadata."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from engine.model.layout import CheckpointError

SPACE = "▁"  # how a SentencePiece vocabulary writes a space

# Meta's split of Llama 3 text before the merges (the tokenizer.json of those models).
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3")


def _gpt2_split() -> list[pre_tokenizers.PreTokenizer]:
    return [pre_tokenizers.ByteLevel(add_prefix_space=False)]


def _smollm_split() -> list[pre_tokenizers.PreTokenizer]:
    return [pre_tokenizers.Digits(individual_digits=True), *_gpt2_split()]


def _llama3_split() -> list[pre_tokenizers.PreTokenizer]:
    return [
        pre_tokenizers.Split(Regex(_LLAMA3_SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]


# How text is cut before the merges, by tokenizer.ggml.pre.
_SPLITS = {"smollm": _smollm_split, "default": _gpt2_split, "gpt-2": _gpt2_split} | dict.fromkeys(
    _LLAMA3_NAMES, _llama3_split
)


class TokenType(IntEnum):
    """llama.cpp's kinds of vocabulary entries."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def tokenizer_of(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that a GGUF file's metadata describes: byte-level BPE or SentencePiece BPE.

    Raises CheckpointError naming the key for a vocabulary that is neither, or is not split in a known way.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        raise CheckpointError(f"tokenizer.ggml.model is {kind!r}; supported: 'gpt2', 'llama'")
    tokens = _key(metadata, "tokens")
    types = _key(metadata, "token_type")
    vocab = {token: i for i, token in enumerate(tokens)}
    if len(vocab) < len(tokens):
        raise CheckpointError(f"tokenizer.ggml.tokens holds {len(tokens)} tokens, only {len(vocab)} differ")
    tokenizer = (_byte_level if kind == "gpt2" else _sentence_piece)(metadata, vocab)
    for type_, special in ((TokenType.CONTROL, True), (TokenType.USER_DEFINED, False)):
        whole = [token for token, kind_of in zip(tokens, types, strict=True) if kind_of == type_]
        added = [AddedToken(token, special=special, normalized=False) for token in whole]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(added)
    if _adds_bos(metadata, kind):
        bos = tokens[_key(metadata, "bos_token_id")]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, vocab[bos])]
        )
    return tokenizer


def tokenizer_config(metadata: Mapping[str, Any], model_max_length: int) -> dict[str, Any]:
    """tokenizer_config.json for transformers: which tokens play which part, and the chat template.

    The class is the generic one, which takes tokenizer.json as it is; classes of a model family rebuild
    the tokenizer from its vocabulary and lose how text is split. What is added around a text is the
    tokenizer.json's business, so no add_bos_token stands here.
    """
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model_max_length,
        "clean_up_tokenization_spaces": False,
    }
    for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token_id = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is not None:
            config[f"{role}_token"] = _key(metadata, "tokens")[token_id]
    if "tokenizer.chat_template" in metadata:
        config["chat_template"] = metadata["tokenizer.chat_template"]
    return config


def _byte_level(metadata: Mapping[str, Any], vocab: dict[str, int]) -> Tokenizer:
    merges = [tuple(merge.split(" ")) for merge in _key(metadata, "merges")]
    split_as = metadata.get("tokenizer.ggml.pre", "default")
    if split_as not in _SPLITS:
        raise CheckpointError(f"tokenizer.ggml.pre is {split_as!r}; supported: {', '.join(_SPLITS)}")
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=split_as in _LLAMA3_NAMES))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(_SPLITS[split_as]())
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentence_piece(metadata: Mapping[str, Any], vocab: dict[str, int]) -> Tokenizer:
    unknown = _key(metadata, "tokens")[metadata.get("tokenizer.ggml.unknown_token_id", 0)]
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=_merges_of_scores(metadata, vocab),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces_written = normalizers.Replace(" ", SPACE)
    spaces_read = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces_written])
        tokenizer.decoder = decoders.Sequence([*spaces_read, decoders.Strip(" ", 1, 0)])
    else:
        tokenizer.normalizer = spaces_written
        tokenizer.decoder = decoders.Sequence(spaces_read)
    return tokenizer


def _merges_of_scores(metadata: Mapping[str, Any], vocab: dict[str, int]) -> list[tuple[str, str]]:
    """SentencePiece joins the neighbours whose joint piece has the highest score (Kudo and Richardson, 2018,
    arXiv:1808.06226): every way to cut a piece into two pieces is a merge, in falling order of scores."""
    types, scores = _key(metadata, "token_type"), _key(metadata, "scores")
    pieces = [piece for piece, i in vocab.items() if types[i] in (TokenType.NORMAL, TokenType.USER_DEFINED)]
    known = set(pieces)
    pieces.sort(key=lambda piece: (-scores[vocab[piece]], vocab[piece]))
    return [
        (piece[:cut], piece[cut:])
        for piece in pieces
        for cut in range(1, len(piece))
        if piece[:cut] in known and piece[cut:] in known
    ]


def _adds_bos(metadata: Mapping[str, Any], kind: str) -> bool:
    """llama.cpp's defaults where a file does not say: SentencePiece and Llama 3 texts begin with BOS."""
    default = kind == "llama" or metadata.get("tokenizer.ggml.pre") in _LLAMA3_NAMES
    return metadata.get("tokenizer.ggml.add_bos_token", default)


def _key(metadata: Mapping[str, Any], name: str) -> Any:
    if f"tokenizer.ggml.{name}" not in metadata:
        raise CheckpointError(f"metadata key tokenizer.ggml.{name} is missing")
    return metadata[f"tokenizer.ggml.{name}"]
