"""Messages between front end and engine process: one frame a message, over a socket pair.

A frame is a 4-byte little-endian length, one byte that names the kind, and the body. Orders to the engine
are rare and pickled (both ends are this program, on a private socket); the news of a step is one packed
array of int32, whatever the number of requests, unless log probabilities are among it.
"""

import pickle
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.serving.request import Finish, SamplingParams, Update

_HEADER = struct.Struct("<IB")
ADD, CANCEL, STOP, READY, STEP, STEP_WITH_LOGPROBS, REFUSED, FAILED, RESET_PREFIX_CACHE = range(9)
_STATS = ("running", "waiting", "kv_blocks_used", "kv_blocks", "preemptions")


@dataclass(frozen=True, slots=True)
class Add:
    request_id: int
    prompt: list[int]
    params: SamplingParams
    priority: int
    cache_salt: str = ""


def pack(kind: int, body: Any) -> bytes:
    """One frame with a pickled body."""
    data = pickle.dumps(body, protocol=pickle.HIGHEST_PROTOCOL)
    return _HEADER.pack(len(data), kind) + data


def pack_step(updates: list[Update], stats: dict[str, int]) -> bytes:
    """The news of one step: stats, a row of (id low, id high, tokens, finish, cached) each, all tokens."""
    if any(u.logprobs or u.prompt_logprobs for u in updates):
        return pack(STEP_WITH_LOGPROBS, (updates, stats))
    head = [stats[name] for name in _STATS]
    rows: list[int] = []
    tokens: list[int] = []
    for u in updates:
        rows += (u.request_id & 0x7FFFFFFF, u.request_id >> 31, len(u.token_ids), u.finish, u.cached_tokens)
        tokens += u.token_ids
    data = np.array([len(updates), *head, *rows, *tokens], dtype=np.int32).tobytes()
    return _HEADER.pack(len(data), STEP) + data


def unpack(kind: int, data: bytes) -> Any:
    """The body of a frame; for both kinds of step a pair (updates, stats)."""
    if kind != STEP:
        return pickle.loads(data)
    numbers = np.frombuffer(data, dtype=np.int32).tolist()
    first = 1 + len(_STATS)
    stats = dict(zip(_STATS, numbers[1:first], strict=True))
    at = first + 5 * numbers[0]
    updates = []
    for row in range(first, at, 5):
        low, high, count, finish, cached = numbers[row : row + 5]
        updates.append(Update(low | high << 31, numbers[at : at + count], Finish(finish), cached))
        at += count
    return updates, stats


def joined(frames: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
    """The frames with the news of steps that follow each other as that of one step.

    A front end that is behind reads several steps at once. One event with their tokens costs it little more
    than an event with one, so that it catches up, whatever the number of requests.
    """
    result: list[tuple[int, Any]] = []
    news: dict[int, Update] = {}
    for kind, body in frames:
        if kind != STEP:
            news = {}
            result.append((kind, body))
            continue
        updates, stats = body
        if not news:
            result.append((STEP, (updates, stats)))
            news = {update.request_id: update for update in updates}
            continue
        together, _ = result[-1][1]
        result[-1] = (STEP, (together, stats))
        for update in updates:
            earlier = news.get(update.request_id)
            if earlier is None:
                news[update.request_id] = update
                together.append(update)
            else:
                earlier.token_ids += update.token_ids
                earlier.finish, earlier.cached_tokens = update.finish, update.cached_tokens
    return result


class FrameReader:
    """Cuts a byte stream into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, Any]]:
        """The (kind, body) of every frame that `data` completes."""
        self._buffer += data
        frames, at = [], 0
        while len(self._buffer) - at >= _HEADER.size:
            length, kind = _HEADER.unpack_from(self._buffer, at)
            if len(self._buffer) - at - _HEADER.size < length:
                break
            at += _HEADER.size
            frames.append((kind, unpack(kind, bytes(self._buffer[at : at + length]))))
            at += length
        del self._buffer[:at]
        return frames
