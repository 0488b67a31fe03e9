"""What is sent, and when: a schedule, the builders of its kinds, and its frozen file.

A schedule is decided before anything is measured and written to a file whose SHA-256 stands in each result;
all systems play the same bytes. See `write` for the format.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from harness.workload.streams import NS_PER_S, exponential_ns, named_stream, shuffle, uniform_int

FORMAT = "llm-ladder schedule"
FORMAT_VERSION = 1

MAX_CONCURRENCY = 65_536
MAX_REQUESTS = 10_000_000
MAX_RATE_RPS = 1_000_000
MAX_DURATION_S = 86_400
MAX_TOKENS = 1_000_000
MAX_TEMPERATURE = 100

Kind = Literal["closed", "open"]


class ScheduleError(ValueError):
    """A schedule cannot be built, written or read; the message names the value and the limit."""


@dataclass(frozen=True)
class ScheduledRequest:
    """One request: its place in the list, when it is due, what is asked.

    `intended_ns` counts from the start of play; None in a closed loop, where a request is due when a slot is
    free. `prompt` is text, or token ids.
    """

    index: int
    intended_ns: int | None
    prompt: str | list[int]
    max_tokens: int
    temperature: float
    ignore_eos: bool
    seed: int | None


@dataclass(frozen=True)
class Schedule:
    """An ordered list of requests and how it is to be played.

    `concurrency` belongs to closed loops, `rate_rps` and `duration_ns` (arrivals lie in [0, duration_ns)) to
    open ones; the others are None.
    """

    name: str
    kind: Kind
    concurrency: int | None
    rate_rps: float | None
    duration_ns: int | None
    seed: int
    requests: tuple[ScheduledRequest, ...]


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

    Prompts and lengths as in `timed_prompts` and `timed_lengths`. Give more requests than any system compared
    can finish in the time played: a play that reaches the end of the list says so. Raises ScheduleError for
    values out of range, or fewer requests than slots.
    """
    _check_int("concurrency", concurrency, 1, MAX_CONCURRENCY)
    _check_int("requests", requests, concurrency, MAX_REQUESTS)
    return _timed(prompts, name, seed, max_tokens, [None] * requests, kind="closed", concurrency=concurrency)


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
    _check_real("rate_rps", rate_rps, MAX_RATE_RPS)
    _check_real("duration_s", duration_s, MAX_DURATION_S)
    if rate_rps * duration_s > MAX_REQUESTS:
        raise ScheduleError(
            f"rate_rps {rate_rps} for duration_s {duration_s} asks for {rate_rps * duration_s:.0f} requests, "
            f"more than {MAX_REQUESTS}"
        )
    duration_ns = round(duration_s * NS_PER_S)
    arrivals = list(_poisson_arrivals(named_stream(seed, "arrivals"), rate_rps, duration_ns))
    if not arrivals:
        raise ScheduleError(
            f"no request arrives within duration_s {duration_s} at rate_rps {rate_rps}, seed {seed}"
        )
    return _timed(
        prompts,
        name,
        seed,
        max_tokens,
        arrivals,
        kind="open",
        rate_rps=float(rate_rps),
        duration_ns=duration_ns,
    )


def correctness(
    prompts: Sequence[str], *, count: int, max_tokens: int, name: str = "correctness", concurrency: int = 4
) -> Schedule:
    """The first `count` prompts as they are, greedy, up to `max_tokens` new tokens, ending at EOS.

    Played as a closed loop until the list is done; nothing of it is timed.
    Raises ScheduleError for values out of range, or more prompts than there are.
    """
    _check_int("count", count, 1, len(prompts))
    _check_int("concurrency", concurrency, 1, MAX_CONCURRENCY)
    _check_int("max_tokens", max_tokens, 1, MAX_TOKENS)
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
    return _checked(schedule)


def timed_prompts(prompts: Sequence[str], *, name: str, seed: int, count: int) -> Iterator[str]:
    """`count` different prompts: texts of the set in shuffled rounds, each behind a serial line of its own.

    The line ("Request 0042 of NAME-SEED.") comes first, so that two requests share no more than the few
    tokens before their serials part, less than a cache block: no prefix cache can answer one request from
    another, nor from a schedule of another name or seed. Playing the same file again does meet its own
    prompts. Order from the stream "prompts".
    """
    if not prompts:
        raise ScheduleError("the list of prompts is empty; at least 1 is needed")
    stream = named_stream(seed, "prompts")
    order: list[int] = []
    for serial in range(count):
        if not order:
            order = list(range(len(prompts)))
            shuffle(stream, order)
        yield f"Request {serial:04d} of {name}-{seed}.\n\n{prompts[order.pop()]}"


def timed_lengths(seed: int, count: int, low: int, high: int) -> Iterator[int]:
    """`count` output lengths, uniform over low..high, from the stream "lengths"."""
    stream = named_stream(seed, "lengths")
    return (uniform_int(stream, low, high) for _ in range(count))


def _poisson_arrivals(stream: Any, rate_rps: float, duration_ns: int) -> Iterator[int]:
    now_ns = exponential_ns(stream, rate_rps)
    while now_ns < duration_ns:
        yield now_ns
        now_ns += exponential_ns(stream, rate_rps)


def _timed(
    prompts: Sequence[str],
    name: str,
    seed: int,
    max_tokens: tuple[int, int],
    arrivals: Sequence[int | None],
    *,
    kind: Kind,
    concurrency: int | None = None,
    rate_rps: float | None = None,
    duration_ns: int | None = None,
) -> Schedule:
    """Timed requests go greedy, ignore EOS and have exact lengths, so that every system does equal work."""
    low, high = max_tokens
    _check_int("max_tokens (upper end)", high, 1, MAX_TOKENS)
    _check_int("max_tokens (lower end)", low, 1, high)
    count = len(arrivals)
    texts = timed_prompts(prompts, name=name, seed=seed, count=count)
    lengths = timed_lengths(seed, count, low, high)
    requests = tuple(
        ScheduledRequest(index, due, text, length, temperature=0.0, ignore_eos=True, seed=None)
        for index, (due, text, length) in enumerate(zip(arrivals, texts, lengths, strict=True))
    )
    return _checked(Schedule(name, kind, concurrency, rate_rps, duration_ns, seed, requests))


def write(schedule: Schedule, path: Path) -> str:
    """Write the canonical file of a schedule atomically; returns its SHA-256 in hex.

    JSON lines in UTF-8, keys sorted, no spaces, each line ended by a line feed: first a header, then a line a
    request. Equal schedules have equal bytes: times are integers of ns, and the two real numbers (rate_rps,
    temperature) are the caller's own, never results of arithmetic.
    """
    _checked(schedule)
    data = b"".join(_lines(schedule))
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        unfinished = Path(file.name)
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            unfinished.chmod(0o644)
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
    return hashlib.sha256(data).hexdigest()


def read(path: Path) -> tuple[Schedule, str]:
    """The schedule of a file and the SHA-256 of its bytes.

    Raises ScheduleError, with the line, for a file that is not exactly what `write` makes (another format or
    version, cut short, edited by hand); OSError when it cannot be read.
    """
    data = path.read_bytes()
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
        schedule = _checked(Schedule(**schedule_fields, requests=requests))
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


def _checked(schedule: Schedule) -> Schedule:
    """The schedule itself, when every rule of its kind holds (also for one that was read from a file)."""
    if not (isinstance(schedule.name, str) and re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,63}", schedule.name)):
        raise ScheduleError(
            f"name {schedule.name!r} must be 1 to 64 of a-z 0-9 . _ - and start with a letter or digit"
        )
    _check_int("seed", schedule.seed, -(2**63), 2**63 - 1)
    if schedule.kind == "closed":
        _check_int("concurrency", schedule.concurrency, 1, MAX_CONCURRENCY)
        _check_none("closed", rate_rps=schedule.rate_rps, duration_ns=schedule.duration_ns)
    elif schedule.kind == "open":
        _check_real("rate_rps", schedule.rate_rps, MAX_RATE_RPS)
        _check_float("rate_rps", schedule.rate_rps, 0, MAX_RATE_RPS)
        _check_int("duration_ns", schedule.duration_ns, 1, MAX_DURATION_S * NS_PER_S)
        _check_none("open", concurrency=schedule.concurrency)
    else:
        raise ScheduleError(f"kind {schedule.kind!r} must be 'closed' or 'open'")
    _check_int("number of requests", len(schedule.requests), 1, MAX_REQUESTS)
    earliest_ns = 0
    for position, request in enumerate(schedule.requests):
        try:
            earliest_ns = _check_request(schedule, position, request, earliest_ns)
        except ScheduleError as error:
            raise ScheduleError(f"request {position} (line {position + 2} of its file): {error}") from None
    return schedule


def _check_request(schedule: Schedule, position: int, request: ScheduledRequest, earliest_ns: int) -> int:
    _check_int("index", request.index, position, position)
    _check_int("max_tokens", request.max_tokens, 1, MAX_TOKENS)
    if not isinstance(request.ignore_eos, bool):
        raise ScheduleError(f"ignore_eos {request.ignore_eos!r} must be true or false")
    _check_float("temperature", request.temperature, 0, MAX_TEMPERATURE)
    if request.seed is not None:
        _check_int("seed", request.seed, 0, 2**63 - 1)
    if isinstance(request.prompt, list):
        for token in request.prompt:
            _check_int("token id", token, 0, 2**31 - 1)
    elif not isinstance(request.prompt, str):
        raise ScheduleError(
            f"prompt of type {type(request.prompt).__name__} must be text or a list of token ids"
        )
    if not request.prompt:
        raise ScheduleError("prompt is empty; at least 1 character or token is needed")
    if schedule.kind == "closed":
        _check_none("closed", intended_ns=request.intended_ns)
        return earliest_ns
    _check_int("intended_ns", request.intended_ns, earliest_ns, schedule.duration_ns - 1)
    return request.intended_ns


def _check_none(kind: Kind, **values: Any) -> None:
    for name, value in values.items():
        if value is not None:
            raise ScheduleError(f"{name} {value!r} must be null in a schedule of kind {kind!r}")


def _check_int(name: str, value: Any, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ScheduleError(f"{name} {value!r} must be an integer from {low} to {high}")


def _check_real(name: str, value: Any, high: float) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= high:
        raise ScheduleError(f"{name} {value!r} must be a number above 0, at most {high}")


def _check_float(name: str, value: Any, low: float, high: float) -> None:
    """A float and not an int: 2 and 2.0 would be different bytes of equal schedules."""
    if not isinstance(value, float) or not low <= value <= high:
        raise ScheduleError(f"{name} {value!r} must be a float from {low} to {high}")
