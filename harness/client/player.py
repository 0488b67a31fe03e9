"""Plays a schedule file against a server: starts the worker processes, collects their records."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import Pipe as make_pipe
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from harness.client.ledger import EVENTS_KEPT, thin
from harness.client.messages import ClosedShare, Delivery, Failure, Job, Progress, Ready, Records
from harness.client.received import Received
from harness.client.record import PlayInfo, RequestRecord
from harness.client.wire import Target, Tickets, build_wire_file
from harness.schema import RECEIVED_BIN_MS
from harness.workload.schedule import Schedule, read

CHECKOUT = Path(__file__).resolve().parents[2]
CONNECT_TIMEOUT_S = 5.0
START_LEAD_NS = 50_000_000
"""From the last worker's Ready to the start of play."""

MIN_CORES_TO_PIN = 4
"""On a smaller machine a pinned worker would take a core from the server."""

ProgressHook = Callable[[int, int | None, float], None]


class PlayError(RuntimeError):
    """A play could not be carried through: no server, or a worker that died. There are no records then."""


def default_workers() -> int:
    """A quarter of the cores this process may use, at least one: the server is on the same machine."""
    return max(1, len(os.sched_getaffinity(0)) // 4)


def play(
    schedule_path: Path,
    base_url: str,
    model: str,
    *,
    workers: int,
    seconds: float | None = None,
    timeout_s: float = 300.0,
    drain_s: float = 60.0,
    keep_output: bool = False,
    window_ns: tuple[int, int] | None = None,
    on_progress: ProgressHook | None = None,
) -> tuple[list[RequestRecord], Received, PlayInfo]:
    """Send the requests of a schedule to an OpenAI-compatible server at `base_url`; the records in order of
    index, what all of them received by time, and how it was played.

    An open loop sends every request at its intended time (conversation k from worker k mod `workers`; a
    request on its own is a conversation of one turn) and has a record of each. A later turn is sent when the
    turn before it has ended and its delay is over; when that one failed, it is not sent but recorded as
    failed, and so are those after it.

    A closed loop shares its slots evenly over the workers; they start evenly spread over the schedule's
    start_over_ns. All slots take conversations from one list in its order and play each turn by turn, for
    `seconds` (None: to the end of the list), so the records are of the conversations 0 to the last that
    started. Turns after a failed one, and those due after `seconds`, are not started and have no record.

    Requests in flight when the last has started may take `drain_s` more, and each at most `timeout_s` from
    its start; then it is recorded as "timeout". Nothing is retried and no failure raises.

    Memory for events is bounded: beyond EVENTS_KEPT, records hold those of some requests only
    (PlayInfo.events_stride), while Received counts all.

    `keep_output` keeps text and token ids besides the hash. `window_ns` is noted in the PlayInfo, nothing
    else. `on_progress(done, total, seconds since the start)` is called a few times a second; total is None
    when it is not known beforehand (a timed closed loop).

    Raises ScheduleError for a damaged file, TargetError (both ValueErrors) for a bad URL, ValueError for
    other bad arguments, PlayError when nothing listens at the URL or a worker dies. Workers are gone when it
    returns or raises.
    """
    _check_positive(workers=workers, timeout_s=timeout_s, drain_s=drain_s)
    schedule, schedule_sha256 = read(schedule_path)
    if seconds is not None:
        _check_positive(seconds=seconds)
        if schedule.kind == "open":
            raise ValueError(
                f"seconds {seconds} given, but an open schedule ({schedule_path}) has its own length"
            )
    target = Target.from_url(base_url)
    address = _reachable_address(target)
    conversations = sum(request.after is None for request in schedule.requests)
    workers = min(workers, schedule.concurrency or conversations)
    cpus = cpus_for(workers)
    with contextlib.ExitStack() as stack:
        wire = build_wire_file(schedule, target, model)
        stack.callback(os.close, wire.descriptor)
        tickets = Tickets.create(conversations)
        stack.callback(os.close, tickets.descriptor)
        jobs = [
            Job(
                worker=worker,
                workers=workers,
                cpu=cpus[worker] if cpus else None,
                address=address,
                wire=wire,
                closed=_closed_share(schedule, worker, workers, tickets, seconds),
                timeout_ns=round(timeout_s * 1e9),
                drain_ns=round(drain_s * 1e9),
                keep_output=keep_output,
                events_kept=EVENTS_KEPT // workers,
                bin_ms=RECEIVED_BIN_MS,
            )
            for worker in range(workers)
        ]
        crew = [stack.enter_context(_worker_process(job)) for job in jobs]
        for member in crew:
            member.expect_ready()
        epoch_ns = time.monotonic_ns() + START_LEAD_NS
        started_at = datetime.fromtimestamp((time.time_ns() + START_LEAD_NS) / 1e9, UTC)
        for member in crew:
            member.pipe.send(epoch_ns)
        total = len(schedule.requests) if seconds is None else None
        records, deliveries = _collect(
            crew, epoch_ns, total, on_progress or (lambda done, total, seconds: None)
        )
    records.sort(key=lambda record: record.index)
    events_stride = max(delivery.events_stride for delivery in deliveries)
    thin(records, events_stride)
    return (
        records,
        Received.total([delivery.received for delivery in deliveries]),
        PlayInfo(
            schedule_sha256=schedule_sha256,
            started_at=started_at.isoformat(timespec="milliseconds"),
            epoch_ns=epoch_ns,
            workers=workers,
            cpus=cpus,
            played_s=max(record.done_ns for record in records) / 1e9,
            window_ns=window_ns,
            exhausted=any(delivery.exhausted for delivery in deliveries),
            stalled_ms=max(delivery.stalled_ns for delivery in deliveries) / 1e6,
            busy=max(delivery.busy for delivery in deliveries),
            events_stride=events_stride,
        ),
    )


@dataclass
class _Member:
    """A running worker process, as seen from the player."""

    number: int
    process: subprocess.Popen[bytes]
    pipe: Pipe

    def receive(self) -> Any:
        try:
            message = self.pipe.recv()
        except (EOFError, OSError):
            code = self.process.wait()
            raise PlayError(
                f"load generator process {self.number} ended with exit code {code} in the middle of a play"
            ) from None
        if isinstance(message, Failure):
            raise PlayError(f"load generator process {self.number} failed: {message.error}")
        return message

    def expect_ready(self) -> None:
        if not isinstance(message := self.receive(), Ready):
            raise PlayError(f"load generator process {self.number} sent {message!r} before it was ready")


@contextlib.contextmanager
def _worker_process(job: Job) -> Iterator[_Member]:
    """Start a worker as a fresh interpreter: a fork would copy the threads' locks of whoever plays, and
    multiprocessing's spawn would import its main module. It is killed on leaving, if it still runs."""
    ours, theirs = make_pipe()
    descriptors = [theirs.fileno(), job.wire.descriptor, *([job.closed.tickets] if job.closed else [])]
    process = subprocess.Popen(
        [sys.executable, "-m", "harness.client.worker", str(theirs.fileno())],
        pass_fds=descriptors,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(CHECKOUT), *filter(None, sys.path)])},
        stdin=subprocess.PIPE,  # closes with us, however we end
        process_group=0,  # Ctrl-C reaches the player alone, which then ends its workers
    )
    theirs.close()
    try:
        with contextlib.suppress(
            BrokenPipeError
        ):  # a worker that died at once is noticed when it is to answer
            ours.send(job)
        yield _Member(job.worker, process, ours)
    finally:
        ours.close()
        process.kill()
        process.communicate()


def _collect(
    crew: list[_Member], epoch_ns: int, total: int | None, on_progress: ProgressHook
) -> tuple[list[RequestRecord], list[Delivery]]:
    done = dict.fromkeys(range(len(crew)), 0)
    records: list[RequestRecord] = []
    deliveries: list[Delivery] = []
    at_work = {member.pipe: member for member in crew}
    while at_work:
        for pipe in wait(list(at_work), timeout=0.25):
            member = at_work[pipe]
            message = member.receive()
            if isinstance(message, Progress):
                done[member.number] = message.done
            elif isinstance(message, Records):
                records += message.records
            else:
                deliveries.append(message)
                del at_work[pipe]
        on_progress(sum(done.values()), total, max(0.0, (time.monotonic_ns() - epoch_ns) / 1e9))
    return records, deliveries


def _closed_share(
    schedule: Schedule, worker: int, workers: int, tickets: Tickets, seconds: float | None
) -> ClosedShare | None:
    if schedule.kind == "open":
        return None
    slots, start_over_ns = schedule.concurrency, schedule.start_over_ns
    starts_ns = tuple(slot * start_over_ns // slots for slot in range(worker, slots, workers))
    return ClosedShare(starts_ns, tickets.descriptor, None if seconds is None else round(seconds * 1e9))


def _reachable_address(target: Target) -> tuple[str, int]:
    """The numeric address that takes connections (a name may have several), so that workers look nothing
    up."""
    try:
        with socket.create_connection((target.host, target.port), timeout=CONNECT_TIMEOUT_S) as probe:
            return probe.getpeername()[:2]
    except OSError as error:
        raise PlayError(f"nothing takes connections at {target.host}:{target.port}: {error}") from None


def cpus_for(workers: int) -> tuple[int, ...]:
    """The last cores, one for each worker, on a machine that has room for it."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < MIN_CORES_TO_PIN or workers > len(allowed) // 2:
        return ()
    return tuple(allowed[-workers:])


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{name} {value} must be above 0")
