"""The requests of a play as bytes on the wire, built before it starts and shared by all workers."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.base_url import split_base_url
from harness.client.exchange import Asked

if TYPE_CHECKING:  # a worker starts in a fifth of the time without what these need
    from harness.workload.schedule import Schedule, ScheduledRequest


class TargetError(ValueError):
    """A base URL that cannot be played against."""


@dataclass(frozen=True)
class Target:
    """Where requests go: `path` is that of the completions endpoint."""

    host: str
    port: int
    path: str

    @staticmethod
    def from_url(base_url: str) -> Target:
        """Of http://HOST[:PORT][/PREFIX], with or without a closing /v1. Raises TargetError for other
        URLs."""
        try:
            host, port, prefix = split_base_url(base_url, "base URL")
        except ValueError as error:
            raise TargetError(str(error)) from None
        return Target(host, port, f"{prefix}/v1/completions")


def wire_bytes(request: ScheduledRequest, target: Target, model: str) -> bytes:
    """One POST as sent. The body is the same for every system: what is timed must not differ by what is
    asked.

    ignore_eos is left out when false and seed when there is none; the rest is always there.
    """
    body = {
        "model": model,
        "prompt": request.prompt,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    if request.ignore_eos:
        body["ignore_eos"] = True
    if request.seed is not None:
        body["seed"] = request.seed
    content = json.dumps(body, separators=(",", ":")).encode()
    host = f"[{target.host}]" if ":" in target.host else target.host
    head = (
        f"POST {target.path} HTTP/1.1\r\n"
        f"Host: {host}:{target.port}\r\n"
        "Content-Type: application/json\r\n"
        "Accept: text/event-stream\r\n"
        "Accept-Encoding: identity\r\n"
        f"Content-Length: {len(content)}\r\n"
        "\r\n"
    )
    return head.encode("latin-1") + content


@dataclass(frozen=True)
class WireFile:
    """Where the bytes of all requests lie in an unnamed file in memory, and what each must bring.

    The file is handed to the workers as a descriptor: nothing is built, copied or parsed once play has begun.
    """

    descriptor: int
    ends: array[int]
    max_tokens: array[int]
    exact: bytes
    prompt_tokens: array[int]
    """0 for a prompt of text, whose tokens only the server knows."""
    intended_ns: array[int]
    """From the start of play; -1 where the schedule gives none."""
    next_turns: array[int]
    """Index of the turn that follows in the conversation; -1 for the last one."""
    delays_ns: array[int]
    firsts: array[int]
    """Indices of first turns, in order: one for each conversation."""


def build_wire_file(schedule: Schedule, target: Target, model: str) -> WireFile:
    """The caller closes the descriptor."""
    descriptor = os.memfd_create("requests")
    ends = array("q")
    with open(descriptor, "wb", closefd=False) as file:
        for request in schedule.requests:
            file.write(wire_bytes(request, target, model))
            ends.append(file.tell())
    next_turns = array("q", [-1]) * len(schedule.requests)
    for request in schedule.requests:
        if request.after is not None:
            next_turns[request.after] = request.index
    return WireFile(
        descriptor,
        ends,
        array("q", (request.max_tokens for request in schedule.requests)),
        bytes(request.ignore_eos for request in schedule.requests),
        array(
            "q",
            (0 if isinstance(request.prompt, str) else len(request.prompt) for request in schedule.requests),
        ),
        array(
            "q", (-1 if request.intended_ns is None else request.intended_ns for request in schedule.requests)
        ),
        next_turns,
        array("q", (request.delay_ns for request in schedule.requests)),
        array("q", (request.index for request in schedule.requests if request.after is None)),
    )


class WireRequests:
    """A worker's view of a WireFile."""

    def __init__(self, wire: WireFile) -> None:
        self._wire = wire
        self._bytes = mmap.mmap(wire.descriptor, 0, prot=mmap.PROT_READ)

    def bytes_of(self, index: int) -> bytes:
        return self._bytes[self._wire.ends[index - 1] if index else 0 : self._wire.ends[index]]

    def asked(self, index: int) -> Asked:
        return Asked(
            index,
            self._wire.max_tokens[index],
            bool(self._wire.exact[index]),
            self._wire.prompt_tokens[index] or None,
        )

    def intended_ns(self, index: int) -> int:
        """From the start of play, of a first turn of an open loop."""
        return self._wire.intended_ns[index]

    def delay_ns(self, index: int) -> int:
        """From the end of the turn before it."""
        return self._wire.delays_ns[index]

    def next_turn(self, index: int) -> int | None:
        """What follows a request in its conversation."""
        following = self._wire.next_turns[index]
        return None if following < 0 else following

    @property
    def firsts(self) -> array[int]:
        """First turn of each conversation; a request on its own is a conversation of one turn."""
        return self._wire.firsts


class Tickets:
    """The order of a closed loop over processes: whoever has a free slot takes the next conversation of the
    list.

    The state is one number in a file in memory, under a record lock, which the kernel drops when its holder
    dies. (A file offset shared by inheritance would do without a lock, but reads of a memfd do not move it
    atomically.)
    """

    def __init__(self, descriptor: int, count: int) -> None:
        self.descriptor = descriptor
        self.count = count

    @staticmethod
    def create(count: int) -> Tickets:
        """Tickets 0 to count - 1; the caller closes the descriptor."""
        return Tickets(os.memfd_create("tickets"), count)

    def take(self) -> int | None:
        """Number of the next conversation; None when the list is at its end."""
        fcntl.lockf(self.descriptor, fcntl.LOCK_EX)
        try:
            ticket = int.from_bytes(os.pread(self.descriptor, 8, 0), "little")
            if ticket == self.count:
                return None
            os.pwrite(self.descriptor, (ticket + 1).to_bytes(8, "little"), 0)
            return ticket
        finally:
            fcntl.lockf(self.descriptor, fcntl.LOCK_UN)


def own_share(worker: int, workers: int, firsts: array[int]) -> Iterator[int]:
    """First turns that a worker sends in an open loop, and what follows them: each `workers`-th conversation,
    so that load is even at all times."""
    return iter(firsts[worker::workers])
