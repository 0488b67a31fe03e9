"""Token ids to text while they are generated: characters never split, stop strings never leaked.

The text of all pieces of one request, joined, equals `tokenizer.decode(ids, skip_special_tokens=True)` of
all its ids. Ids beyond the vocabulary (padding rows of the output layer) have no text. Two kinds of decoder
are known, told apart by `decoder` in tokenizer.json:

- ByteLevel (GPT-2's alphabet of bytes: Llama 3, SmolLM2): an id stands for bytes, a request for their UTF-8
  text with U+FFFD where it is invalid.
- SentencePiece with byte fallback (Llama 2, TinyLlama): an id stands for text or for one byte. A run of
  bytes that is not UTF-8 as a whole becomes one U+FFFD per byte, so a run is held back until it ends.
"""

import codecs
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from tokenizers import Tokenizer

from engine.config import ConfigError

REPLACEMENT = "\ufffd"
_SENTENCEPIECE = [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
]
_SENTENCEPIECE_DECODER = {"type": "Sequence", "decoders": _SENTENCEPIECE}


class Detokenizer(ABC):
    """The text of one request, id by id."""

    @abstractmethod
    def push(self, token_id: int) -> str:
        """The text that this id completes; empty while a character is incomplete."""

    @abstractmethod
    def finish(self) -> str:
        """The text still held back. Nothing may be pushed afterwards."""


def detokenizer_factory(tokenizer: Tokenizer) -> Callable[[], Detokenizer]:
    """A maker of detokenizers, one for each request, that share the tables built here.

    Raises ConfigError when the tokenizer's decoder is of neither kind.
    """
    described = json.loads(tokenizer.to_str())
    decoder = described["decoder"]
    special = _special_ids(described)
    size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    tokens = [None if id in special else tokenizer.id_to_token(id) for id in range(size)]
    if decoder == _SENTENCEPIECE_DECODER:
        pieces = [_sentencepiece_piece(token) for token in tokens]
        return lambda: SentencePieceDetokenizer(pieces)
    if decoder is not None and decoder["type"] == "ByteLevel":
        table = [b"" if token is None else _byte_level_bytes(token) for token in tokens]
        return lambda: ByteLevelDetokenizer(table)
    raise ConfigError(
        f"the tokenizer's decoder is {json.dumps(decoder)}; "
        "supported are ByteLevel and SentencePiece's Replace, ByteFallback, Fuse, Strip"
    )


def token_bytes(tokenizer: Tokenizer) -> Callable[[int], bytes | None]:
    """A function from an id to the bytes it stands for by itself: a special token's are those of its name;
    None beyond the vocabulary. The tokenizer's decoder is one that `detokenizer_factory` takes."""
    described = json.loads(tokenizer.to_str())
    special = _special_ids(described)
    sentencepiece = described["decoder"] == _SENTENCEPIECE_DECODER

    def bytes_of(token_id: int) -> bytes | None:
        token = tokenizer.id_to_token(token_id)
        if token is None:
            return None
        if token_id in special:
            return token.encode()
        if not sentencepiece:
            return _byte_level_bytes(token)
        piece = _sentencepiece_piece(token)
        return bytes([piece]) if isinstance(piece, int) else piece.encode()

    return bytes_of


def _special_ids(described: dict[str, Any]) -> set[int]:
    return {token["id"] for token in described["added_tokens"] if token["special"]}


class ByteLevelDetokenizer(Detokenizer):
    """table: the bytes of each id."""

    def __init__(self, table: Sequence[bytes]) -> None:
        self._table = table
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def push(self, token_id: int) -> str:
        return self._decode(self._table[token_id]) if token_id < len(self._table) else ""

    def finish(self) -> str:
        return self._decode(b"", final=True)


class SentencePieceDetokenizer(Detokenizer):
    """pieces: for each id its text, its byte as an int, or None where it has no text."""

    def __init__(self, pieces: Sequence[str | int | None]) -> None:
        self._pieces = pieces
        self._run = bytearray()
        self._started = False

    def push(self, token_id: int) -> str:
        piece = self._pieces[token_id] if token_id < len(self._pieces) else None
        if piece is None:
            return ""
        if isinstance(piece, int):
            self._run.append(piece)
            return ""
        return self._strip_first(self._end_run() + piece)

    def finish(self) -> str:
        return self._strip_first(self._end_run())

    def _end_run(self) -> str:
        try:
            text = self._run.decode()
        except UnicodeDecodeError:
            text = REPLACEMENT * len(self._run)
        self._run.clear()
        return text

    def _strip_first(self, text: str) -> str:
        if self._started or not text:
            return text
        self._started = True
        return text.removeprefix(" ")


class StopStrings:
    """Cuts a text that comes in pieces at the first stop string, holding back what may become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """(text that is safe to show, whether a stop string was met); after a stop nothing is to be
        pushed."""
        text = self._held + text
        starts = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if starts:
            self._held = ""
            return text[: min(starts)], True
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def finish(self) -> str:
        """The text held back, which no stop string can claim any more."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte: itself where printable, else the next free one from U+0100
    on."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def _byte_level_bytes(token: str) -> bytes:
    if all(character in _BYTE_OF for character in token):
        return bytes(_BYTE_OF[character] for character in token)
    return token.encode()


def _sentencepiece_piece(token: str | None) -> str | int | None:
    if token is None:
        return None
    token = token.replace("▁", " ")
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return int(token[3:5], 16)
        except ValueError:
            return token
    return token
