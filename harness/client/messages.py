"""What player and worker processes tell each other, pickled over a pipe."""

from __future__ import annotations

from dataclasses import dataclass

from harness.client.received import Received
from harness.client.record import RequestRecord
from harness.client.wire import WireFile


@dataclass(frozen=True)
class ClosedShare:
    """A worker's part of a closed loop: when each of its slots starts, the descriptor of the tickets that all
    workers share, and when no request starts any more (ns from the start of play; None: at the end of the
    list)."""

    slot_starts_ns: tuple[int, ...]
    tickets: int
    stop_ns: int | None


@dataclass(frozen=True)
class Job:
    """What a worker is to do; `closed` is None for an open loop. `cpu` is a core to stay on, `bin_ms` the
    length of the bins of Received."""

    worker: int
    workers: int
    cpu: int | None
    address: tuple[str, int]
    wire: WireFile
    closed: ClosedShare | None
    timeout_ns: int
    drain_ns: int
    keep_output: bool
    events_kept: int
    bin_ms: int


@dataclass(frozen=True)
class Ready:
    """Connections are open; play may begin."""


@dataclass(frozen=True)
class Progress:
    """Requests that have ended so far."""

    done: int


@dataclass(frozen=True)
class Records:
    """Some of the records of a worker, in order of their ends."""

    records: list[RequestRecord]


@dataclass(frozen=True)
class Delivery:
    """What else a worker has when all its records are sent. `stalled_ns`: the longest time that it did not
    run when it was to; `busy`: processor time / time of the play."""

    received: Received
    events_stride: int
    exhausted: bool
    stalled_ns: int
    busy: float


@dataclass(frozen=True)
class Failure:
    """A worker cannot go on, and why."""

    error: str
