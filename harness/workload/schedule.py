"""What is sent, and when: a schedule, its rules, and its frozen file.

A schedule is decided before anything is measured and written to a file whose SHA-256 stands in each result;
all systems play the same bytes. See `write` for the format, and workload.build for how one is made.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from harness.workload.arrivals import arrivals_ns
from harness.workload.atomic import put
from harness.workload.checks import (
    MAX_CONCURRENCY,
    MAX_DURATION_S,
    MAX_RATE_RPS,
    MAX_REQUESTS,
    MAX_TEMPERATURE,
    MAX_TOKEN_ID,
    MAX_TOKENS,
    ScheduleError,
    check_float,
    check_int,
    check_real,
)
from harness.workload.declared import PoissonLoad, UniformLength
from harness.workload.lengths import draw
from harness.workload.prompts import timed_prompts
from harness.workload.streams import NS_PER_S, to_ns

FORMAT = "llm-ladder schedule"
FORMAT_VERSION = 2

Kind = Literal["closed", "open"]


@dataclass(frozen=True)
class ScheduledRequest:
    """One request: its place in the list, when it is due, what is asked.

    `intended_ns` counts from the start of play; None in a closed loop, where a request is due when a slot is
    free. `prompt` is text, or token ids. A later turn of a conversation names the turn before it in `after`
    (its index) and is due `delay_ns` after that one ended, in open loops too, where its `intended_ns` is
    None.
    """

    index: int
    intended_ns: int | None
    prompt: str | list[int]
    max_tokens: int
    temperature: float
    ignore_eos: bool
    seed: int | None
    after: int | None = None
    delay_ns: int = 0


@dataclass(frozen=True)
class Schedule:
    """An ordered list of requests and how it is to be played.

    `concurrency` belongs to closed loops, `rate_rps` and `duration_ns` (arrivals lie in [0, duration_ns)) to
    open ones; the others are None. The slots of a closed loop start evenly spread over `start_over_ns`; each
    plays a whole conversation, then takes the next of the list. In an open loop `rate_rps` counts first
    turns. `left_out` counts the requests of a trace, or of the part replayed, that are missing as they were
    too long.
    """

    name: str
    kind: Kind
    concurrency: int | None
    rate_rps: float | None
    duration_ns: int | None
    seed: int
    requests: tuple[ScheduledRequest, ...]
    start_over_ns: int = 0
    left_out: int = 0


def closed_loop(
    prompts: Sequence[str],
    *,
    name: str,
    seed: int,
    concurrency: int,
    requests: int,
    max_tokens: tuple[int, int],
) -> Schedule:
    """`requests` requests for `concurrency` slots, each slot taking the next of the list when it is free.

    Prompts as in `timed_prompts`, output lengths uniform over `max_tokens`. Give more requests than any
    system compared can finish in the time played: a play that reaches the end of the list says so. Raises
    ScheduleError for values out of range, or fewer requests than slots.
    """
    check_int("concurrency", concurrency, 1, MAX_CONCURRENCY)
    check_int("requests", requests, concurrency, MAX_REQUESTS)
    asked = _english(prompts, name, seed, max_tokens, [None] * requests)
    return checked(Schedule(name, "closed", concurrency, None, None, seed, asked))


def poisson(
    prompts: Sequence[str],
    *,
    name: str,
    seed: int,
    rate_rps: float,
    duration_s: float,
    max_tokens: tuple[int, int],
) -> Schedule:
    """Independent exponential gaps at `rate_rps` requests/s, for every arrival before `duration_s`.

    Intended times are whole ns from the start of play, never rescaled to meet the rate: the number of
    arrivals varies with the seed, as it does in a Poisson process. Prompts and lengths as in `closed_loop`.
    Raises ScheduleError for values out of range, or when no request arrives before the end.
    """
    check_real("rate_rps", rate_rps, MAX_RATE_RPS)
    check_real("duration_s", duration_s, MAX_DURATION_S)
    duration_ns = to_ns(duration_s)
    due = arrivals_ns(PoissonLoad(rate_rps=rate_rps), seed, duration_ns)
    asked = _english(prompts, name, seed, max_tokens, due)
    return checked(Schedule(name, "open", None, float(rate_rps), duration_ns, seed, asked))


def correctness(
    prompts: Sequence[str], *, count: int, max_tokens: int, name: str = "correctness", concurrency: int = 4
) -> Schedule:
    """The first `count` prompts as they are, greedy, up to `max_tokens` new tokens, ending at EOS.

    Played as a closed loop until the list is done; nothing of it is timed.
    Raises ScheduleError for values out of range, or more prompts than there are.
    """
    check_int("count", count, 1, len(prompts))
    check_int("concurrency", concurrency, 1, MAX_CONCURRENCY)
    check_int("max_tokens", max_tokens, 1, MAX_TOKENS)
    requests = tuple(
        ScheduledRequest(index, None, prompt, max_tokens, temperature=0.0, ignore_eos=False, seed=None)
        for index, prompt in enumerate(prompts[:count])
    )
    schedule = Schedule(
        name=name,
        kind="closed",
        concurrency=min(concurrency, count),
        rate_rps=None,
        duration_ns=None,
        seed=0,
        requests=requests,
    )
    return checked(schedule)


def timed(
    index: int,
    due_ns: int | None,
    prompt: str | list[int],
    tokens: int,
    after: int | None = None,
    delay_ns: int = 0,
) -> ScheduledRequest:
    """A timed request is greedy, ignores EOS and has an exact length: every system does equal work."""
    return ScheduledRequest(index, due_ns, prompt, tokens, 0.0, True, None, after, delay_ns)


def _english(
    prompts: Sequence[str], name: str, seed: int, max_tokens: tuple[int, int], due: Sequence[int | None]
) -> tuple[ScheduledRequest, ...]:
    low, high = max_tokens
    check_int("max_tokens (upper end)", high, 1, MAX_TOKENS)
    check_int("max_tokens (lower end)", low, 1, high)
    texts = timed_prompts(prompts, name=name, seed=seed)
    lengths = draw(UniformLength(low=low, high=high), seed, "lengths")
    return tuple(map(timed, itertools.count(), due, texts, lengths))


def write(schedule: Schedule, path: Path) -> str:
    """Write the canonical file of a schedule atomically; returns the SHA-256 of its text in hex.

    JSON lines in UTF-8, keys sorted, no spaces, each line ended by a line feed: first a header, then a line a
    request. Equal schedules have equal bytes: times are integers of ns, and the two real numbers (rate_rps,
    temperature) are written as they were declared, or are a quotient of whole numbers. A path that ends in
    .gz holds the same text compressed; its hash is that of the text all the same.
    """
    checked(schedule)
    text = b"".join(_lines(schedule))
    put(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text, path)
    return hashlib.sha256(text).hexdigest()


def read(path: Path) -> tuple[Schedule, str]:
    """The schedule of a file, compressed if its name ends in .gz, and the SHA-256 of its text.

    Raises ScheduleError, with the line, for a file that is not exactly what `write` makes (another format or
    version, cut short, edited by hand); OSError when it cannot be read.
    """
    data = path.read_bytes()
    if path.suffix == ".gz":
        try:
            data = gzip.decompress(data)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ScheduleError(f"{path}: not a whole gzip file: {error}") from None
    lines = data.split(b"\n")
    if lines.pop() != b"":
        raise ScheduleError(f"{path}, line {len(lines) + 1}: the last line is cut short")
    header = _parse_header(path, lines[0] if lines else b"")
    if len(lines) - 1 != header["requests"]:
        raise ScheduleError(
            f"{path}: its header says {header['requests']} requests, it holds {len(lines) - 1}"
        )
    requests = tuple(_parse_request(path, number, line) for number, line in enumerate(lines[1:], start=2))
    schedule_fields = {
        field.name: header[field.name] for field in fields(Schedule) if field.name != "requests"
    }
    try:
        schedule = checked(Schedule(**schedule_fields, requests=requests))
    except ScheduleError as error:
        raise ScheduleError(f"{path}: {error}") from None
    for number, (found, canonical) in enumerate(zip(lines, _lines(schedule), strict=True), start=1):
        if found + b"\n" != canonical:
            raise ScheduleError(f"{path}, line {number}: not in canonical form; was the file edited?")
    return schedule, hashlib.sha256(data).hexdigest()


def _header(schedule: Schedule) -> dict[str, Any]:
    head = {field.name: getattr(schedule, field.name) for field in fields(Schedule)}
    return head | {"format": FORMAT, "version": FORMAT_VERSION, "requests": len(schedule.requests)}


def _lines(schedule: Schedule) -> Iterator[bytes]:
    yield _canonical(_header(schedule))
    for request in schedule.requests:
        yield _canonical(vars(request))


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _canonical(entry: dict[str, Any]) -> bytes:
    return _ENCODER.encode(entry).encode() + b"\n"


def _parse_object(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise ScheduleError(f"{path}, line {number}: not JSON: {error}") from None
    if not isinstance(entry, dict):
        raise ScheduleError(f"{path}, line {number}: not a JSON object")
    return entry


def _parse_header(path: Path, line: bytes) -> dict[str, Any]:
    header = _parse_object(path, 1, line)
    if header.get("format") != FORMAT:
        raise ScheduleError(
            f"{path}, line 1: not a schedule: format is {header.get('format')!r}, not {FORMAT!r}"
        )
    if header.get("version") != FORMAT_VERSION:
        raise ScheduleError(
            f"{path}, line 1: version {header.get('version')!r}; this reader knows {FORMAT_VERSION}"
        )
    _check_keys(path, 1, header, {"format", "version", *(field.name for field in fields(Schedule))})
    return header


def _parse_request(path: Path, number: int, line: bytes) -> ScheduledRequest:
    entry = _parse_object(path, number, line)
    _check_keys(path, number, entry, _REQUEST_FIELDS)
    return ScheduledRequest(**entry)


_REQUEST_FIELDS = {field.name for field in fields(ScheduledRequest)}


def _check_keys(path: Path, number: int, entry: dict[str, Any], expected: set[str]) -> None:
    if entry.keys() != expected:
        missing, unknown = sorted(expected - entry.keys()), sorted(entry.keys() - expected)
        raise ScheduleError(f"{path}, line {number}: missing fields {missing}, unknown fields {unknown}")


def checked(schedule: Schedule) -> Schedule:
    """The schedule itself, when every rule of its kind holds (also for one that was read from a file)."""
    if not (isinstance(schedule.name, str) and re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,63}", schedule.name)):
        raise ScheduleError(
            f"name {schedule.name!r} must be 1 to 64 of a-z 0-9 . _ - and start with a letter or digit"
        )
    check_int("seed", schedule.seed, -(2**63), 2**63 - 1)
    if schedule.kind == "closed":
        check_int("concurrency", schedule.concurrency, 1, MAX_CONCURRENCY)
        check_int("start_over_ns", schedule.start_over_ns, 0, MAX_DURATION_S * NS_PER_S)
        _check_none("closed loop", rate_rps=schedule.rate_rps, duration_ns=schedule.duration_ns)
    elif schedule.kind == "open":
        check_real("rate_rps", schedule.rate_rps, MAX_RATE_RPS)
        check_float("rate_rps", schedule.rate_rps, 0, MAX_RATE_RPS)
        check_int("duration_ns", schedule.duration_ns, 1, MAX_DURATION_S * NS_PER_S)
        _check_none("open loop", concurrency=schedule.concurrency)
        check_int("start_over_ns of an open loop", schedule.start_over_ns, 0, 0)
    else:
        raise ScheduleError(f"kind {schedule.kind!r} must be 'closed' or 'open'")
    check_int("left_out", schedule.left_out, 0, MAX_REQUESTS)
    check_int("number of requests", len(schedule.requests), 1, MAX_REQUESTS)
    followed: set[int] = set()
    earliest_ns = 0
    for position, request in enumerate(schedule.requests):
        try:
            _check_request(position, request)
            _check_turn(request, followed)
            if schedule.kind == "closed" or request.after is not None:
                _check_none("closed loop or later turn", intended_ns=request.intended_ns)
            else:
                check_int("intended_ns", request.intended_ns, earliest_ns, schedule.duration_ns - 1)
                earliest_ns = request.intended_ns
        except ScheduleError as error:
            raise ScheduleError(f"request {position} (line {position + 2} of its file): {error}") from None
    return schedule


def _check_turn(request: ScheduledRequest, followed: set[int]) -> None:
    if request.after is None:
        check_int("delay_ns of a first turn", request.delay_ns, 0, 0)
        return
    check_int("delay_ns", request.delay_ns, 0, MAX_DURATION_S * NS_PER_S)
    check_int("after", request.after, 0, request.index - 1)
    if request.after in followed:
        raise ScheduleError(
            f"after {request.after!r} has a next turn already; a conversation has no branches"
        )
    followed.add(request.after)


def _check_request(position: int, request: ScheduledRequest) -> None:
    check_int("index", request.index, position, position)
    check_int("max_tokens", request.max_tokens, 1, MAX_TOKENS)
    if not isinstance(request.ignore_eos, bool):
        raise ScheduleError(f"ignore_eos {request.ignore_eos!r} must be true or false")
    check_float("temperature", request.temperature, 0, MAX_TEMPERATURE)
    if request.seed is not None:
        check_int("seed", request.seed, 0, 2**63 - 1)
    if isinstance(request.prompt, list):
        for token in request.prompt:
            if type(token) is not int or not 0 <= token <= MAX_TOKEN_ID:
                raise ScheduleError(f"token id {token!r} must be an integer from 0 to {MAX_TOKEN_ID}")
    elif not isinstance(request.prompt, str):
        raise ScheduleError(
            f"prompt of type {type(request.prompt).__name__} must be text or a list of token ids"
        )
    if not request.prompt:
        raise ScheduleError("prompt is empty; at least 1 character or token is needed")


def _check_none(where: str, **values: Any) -> None:
    for name, value in values.items():
        if value is not None:
            raise ScheduleError(f"{name} {value!r} must be null in a {where}")
