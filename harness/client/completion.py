"""What one event of a streamed completion says: text, tokens so far, end, usage, or an error.

`parse` reads any event in full. `PlainEventScanner` reads the frequent kind, one more piece of text with a
running token count, at a fraction of the cost, and declines everything else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

DONE = b"[DONE]"

MAX_COUNT = 10**9 - 1
"""Most tokens an event may speak of: more is nonsense, and would not fit the arrays of a record."""


class Completion(NamedTuple):
    """`completion_tokens` is the running total by the server's usage; `token_ids` the ids of this event, if
    given."""

    text: str = ""
    has_choice: bool = False
    completion_tokens: int | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    error: str | None = None


def parse(data: bytes) -> Completion:
    """The meaning of an event's data. What is not a completion comes back as a Completion with `error`
    set."""
    try:
        event = json.loads(data.decode())  # as bytes it might be taken for UTF-16
    except (ValueError, RecursionError) as error:
        return Completion(error=f"event is not JSON ({error}): {_shown(data)}")
    if not isinstance(event, dict):
        return Completion(error=f"event is not a JSON object: {_shown(data)}")
    if event.get("error") is not None or event.get("object") == "error":
        return Completion(error=f"error in the stream: {_shown(data)}")
    try:
        return _read(event)
    except TypeError as error:
        return Completion(error=f"event is not a completion ({error}): {_shown(data)}")


def _read(event: dict[str, Any]) -> Completion:
    choices = _typed(event, "choices", list) or []
    if len(choices) > 1:
        raise TypeError(f"{len(choices)} choices where 1 was asked for")
    choice = _object(choices[0]) if choices else {}
    usage = _object(event.get("usage") or {})
    details = _object(usage.get("prompt_tokens_details") or {})
    return Completion(
        text=_typed(choice, "text", str) or "",
        has_choice=bool(choices),
        completion_tokens=_count(usage, "completion_tokens"),
        token_ids=_typed(choice, "token_ids", list),
        finish_reason=_typed(choice, "finish_reason", str),
        prompt_tokens=_count(usage, "prompt_tokens"),
        cached_tokens=_count(details, "cached_tokens"),
    )


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{type(value).__name__} where an object belongs")
    return value


def _typed(holder: dict[str, Any], name: str, kind: type) -> Any:
    value = holder.get(name)
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
        raise TypeError(f"{name} is {type(value).__name__}")
    return value


def _count(holder: dict[str, Any], name: str) -> int | None:
    count = _typed(holder, name, int)
    if count is not None and not 0 <= count <= MAX_COUNT:
        raise TypeError(f"{name} {count} is not from 0 to {MAX_COUNT}")
    return count


def _shown(data: bytes) -> str:
    return data[:300].decode("utf-8", "replace")


_TOKEN = re.compile(rb'\s+|[{}\[\],:]|"(?:[^"\\]|\\.)*"|[^\s{}\[\],:"]+')
_INTEGER = rb"(?:0|[1-9][0-9]{0,17})"
_COUNT = rb"(?:0|[1-9][0-9]{0,8})"  # to MAX_COUNT
# Plain ASCII and the one-letter escapes: what needs UTF-8 or \u decoding is left to the full parse.
_PLAIN = rb'[^"\\\x00-\x1f\x7f-\xff]*'
_STRING_CONTENT = _PLAIN + rb'(?:\\["\\/bfnrt]' + _PLAIN + rb")*"
_TEXT, _TOKENS_SO_FAR = ("choices", 0, "text"), ("usage", "completion_tokens")
_HOLES = {
    ("id",): b'"' + _PLAIN + b'"',
    ("created",): _INTEGER,
    _TEXT: b'"(?P<text>' + _STRING_CONTENT + b')"',
    _TOKENS_SO_FAR: b"(?P<tokens>" + _COUNT + b")",
}
_MAX_ATTEMPTS = 16
"""Patterns tried in the life of a scanner: making one costs as much as a hundred parses."""


class PlainEventScanner:
    """Reads events that differ from one already parsed in full only in id, created, text and usage counts.

    The parsed event becomes a pattern: its own bytes, with exact JSON grammar for those values. What matches
    is therefore one whole event, valid JSON of equal structure, and what the pattern captures is what a full
    parse would find.
    """

    __slots__ = ("_attempts", "_fullmatch", "_groups")

    def __init__(self) -> None:
        self._fullmatch: Callable[[bytes], re.Match[bytes] | None] = _NOTHING.fullmatch
        self._groups = (0, 0)
        self._attempts = 0

    def scan(self, framed: bytes) -> tuple[str, int] | None:
        """(text, completion_tokens) when `framed` is b"data: ", a plain event and an empty line; else None.

        None means no more than that the event must be parsed in full. `framed` must begin where an event
        begins.
        """
        match = self._fullmatch(framed)
        if match is None:
            return None
        text, tokens = match.group(*self._groups)
        return (text.decode() if b"\\" not in text else json.loads(b'"%b"' % text)), int(tokens)

    def learn(self, data: bytes, parsed: Completion) -> None:
        """Take an event that had to be parsed, and what `parse` found, as the new pattern if it is a plain
        one."""
        is_plain = (
            parsed.has_choice
            and parsed.completion_tokens is not None
            and parsed.token_ids is None
            and parsed.finish_reason is None
            and parsed.text.isascii()
        )
        if not is_plain or self._attempts == _MAX_ATTEMPTS:
            return
        self._attempts += 1
        if pattern := _pattern_of(data):
            self._fullmatch = pattern.fullmatch
            self._groups = (pattern.groupindex["text"], pattern.groupindex["tokens"])


_NOTHING = re.compile(rb"(?!)")


def _pattern_of(data: bytes) -> re.Pattern[bytes] | None:
    try:
        json.loads(data, object_pairs_hook=_refuse_repeated_keys)
    except ValueError:
        return None
    pieces, found = [], set()
    for path, token in _tokens(data):
        hole = _hole(path)
        if hole and re.fullmatch(hole, token):
            pieces.append(hole)
            found.add(path)
        else:
            pieces.append(re.escape(token))
    if not {_TEXT, _TOKENS_SO_FAR} <= found or b"\n" in data or b"\r" in data:
        return None
    return re.compile(b"data: " + b"".join(pieces) + b"\n\n")


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> None:
    """Of a key given twice the parser takes the last value: such an event is no pattern for others."""
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("a key is repeated")


def _hole(path: tuple[str | int, ...] | None) -> bytes | None:
    """The grammar of a value that may differ from event to event, None for one that may not."""
    if path is None:
        return None
    return _HOLES.get(path) or (_COUNT if path[0] == "usage" else None)


def _tokens(data: bytes) -> Iterator[tuple[tuple[str | int, ...] | None, bytes]]:
    """Tokens of a valid JSON text in order, each with its path when it is a scalar value, else with None."""
    containers: list[bytes] = []
    path: list[str | int] = []
    is_key = False
    for match in _TOKEN.finditer(data):
        token = match.group()
        if token.isspace() or token == b":":
            yield None, token
        elif token in (b"{", b"["):
            containers.append(token)
            is_key = token == b"{"
            path.append("" if is_key else 0)
            yield None, token
        elif token in (b"}", b"]"):
            containers.pop()
            path.pop()
            is_key = False
            yield None, token
        elif token == b",":
            is_key = containers[-1] == b"{"
            if not is_key:
                path[-1] += 1
            yield None, token
        elif is_key:
            path[-1] = json.loads(token)
            is_key = False
            yield None, token
        else:
            yield tuple(path), token
