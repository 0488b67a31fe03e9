"""Messages between front end and engine process: one frame a message, over a socket pair.

A frame is a 4-byte little-endian length, one byte that names the kind, and the body. Orders to the engine
are rare and pickled (both ends are this program, on a private socket); the news of a step is one packed
message of numbers, whatever the number of requests, unless log probabilities are among it.
"""

import pickle
import struct
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np

from engine.serving.news import News, merged
from engine.serving.request import SamplingParams

_HEADER = struct.Struct("<IB")
ADD, CANCEL, STOP, READY, STEP, STEP_WITH_LOGPROBS, REFUSED, FAILED, RESET_PREFIX_CACHE = range(9)
_STATS = ("running", "waiting", "kv_blocks_used", "kv_blocks", "preemptions")
_STEP_HEAD = struct.Struct(f"<{1 + len(_STATS)}i")


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


def pack_step(news: News, stats: dict[str, int]) -> bytes:
    """The news of one step: the number of rows, the stats, ids as int64, and the rest as int32."""
    if news.logprobs or news.prompt_logprobs:
        return pack(STEP_WITH_LOGPROBS, (news, stats))
    head = _STEP_HEAD.pack(len(news), *(stats[name] for name in _STATS))
    columns = np.concatenate((news.counts, news.finishes, news.cached, news.tokens)).astype(np.int32)
    data = head + news.ids.tobytes() + columns.tobytes()
    return _HEADER.pack(len(data), STEP) + data


def unpack(kind: int, data: bytes) -> Any:
    """The body of a frame; for both kinds of step a pair (news, stats)."""
    if kind != STEP:
        return pickle.loads(data)
    rows, *stats = _STEP_HEAD.unpack_from(data)
    ids = np.frombuffer(data, np.int64, rows, _STEP_HEAD.size)
    columns = np.frombuffer(data, np.int32, offset=_STEP_HEAD.size + ids.nbytes)
    news = News(ids, *columns[: 3 * rows].reshape(3, rows), columns[3 * rows :])
    return news, dict(zip(_STATS, stats, strict=True))


def joined(frames: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
    """The frames with the news of steps that follow each other as that of one step.

    A front end that is behind reads several steps at once. One event with their tokens costs it little more
    than an event with one, so that it catches up, whatever the number of requests.
    """
    result: list[tuple[int, Any]] = []
    for kind, group in groupby(frames, key=itemgetter(0)):
        bodies = [body for _, body in group]
        if kind == STEP:
            bodies = [(merged([news for news, _ in bodies]), bodies[-1][1])]
        result += [(kind, body) for body in bodies]
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
