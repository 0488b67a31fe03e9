"""One process of the load generator: `python -m harness.client.worker DESCRIPTOR`, started by player.py.

The descriptor is its end of a two-way pipe of pickled messages. It receives a Job, opens its connections and
says Ready, receives the start of play (an int, CLOCK_MONOTONIC ns), reports Progress, and in the end sends
its Records and a Delivery, or a Failure. When its standard input closes, its player is gone, and so is it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import sys
import time
import traceback
from multiprocessing.connection import Connection as Pipe
from typing import Any

import uvloop

from harness.client.completion import PlainEventScanner
from harness.client.dispatcher import Dispatcher
from harness.client.exchange import Observer
from harness.client.ledger import Ledger
from harness.client.loops import ClosedLoop, Loop, OpenLoop
from harness.client.messages import Delivery, Failure, Job, Progress, Ready, Records
from harness.client.pacer import Pacer
from harness.client.wire import Tickets, WireRequests, own_share

SPIN_NS = 200_000
"""How long a worker waits busily for the moment of a send: about what a timer's wake-up takes on a virtual
machine."""

HEARTBEAT_S = 0.05
"""Resolution of timeouts, and pause between reports of progress. A beat that comes late says that the
process did not run: in a closed loop nothing else does, because what is late there is sent late and due late
alike."""

HEARTBEAT_NS = round(HEARTBEAT_S * 1e9)

RECORDS_A_MESSAGE = 10_000


async def _play(job: Job, pipe: Pipe) -> tuple[Ledger, bool, int, float]:
    """The records, whether a closed loop ran out of requests, the longest stall, and the share of a core that
    the process used."""
    loop = asyncio.get_running_loop()
    requests = WireRequests(job.wire)
    observer = Observer(job.worker, job.keep_output, PlainEventScanner())
    ledger = Ledger(job.events_kept, job.bin_ms)
    dispatcher = Dispatcher(job.address, requests, observer, ledger, job.timeout_ns)
    await dispatcher.open_idle(len(job.closed.slot_starts_ns) if job.closed else 1)
    pipe.send(Ready())
    observer.epoch_ns = pipe.recv()

    pacer = Pacer(loop, SPIN_NS)
    common = (requests, dispatcher, pacer, observer.epoch_ns, job.drain_ns)
    shape: Loop
    if job.closed:
        stop_ns = None if job.closed.stop_ns is None else observer.epoch_ns + job.closed.stop_ns
        tickets = Tickets(job.closed.tickets, len(requests.firsts))
        shape = ClosedLoop(job.closed.slot_starts_ns, tickets, stop_ns, *common)
    else:
        shape = OpenLoop(own_share(job.worker, job.workers, requests.firsts), *common)

    loop.set_exception_handler(lambda _, context: _fail(shape, context))
    loop.add_reader(sys.stdin.fileno(), os._exit, 1)  # nothing is ever sent there: it can only close
    gc.collect()
    gc.freeze()
    gc.disable()  # a collection would delay stamps by milliseconds
    shape.begin()
    cpu_ns = time.process_time_ns()
    reported = 0
    beat_ns, stalled_ns = time.monotonic_ns(), 0
    while not shape.finished.done():
        await asyncio.wait([shape.finished], timeout=HEARTBEAT_S)
        last_ns, beat_ns = beat_ns, time.monotonic_ns()
        stalled_ns = max(stalled_ns, beat_ns - last_ns - HEARTBEAT_NS)
        dispatcher.expire(beat_ns)
        if len(ledger.records) != reported:
            reported = len(ledger.records)
            pipe.send(Progress(reported))
    shape.finished.result()
    busy = (time.process_time_ns() - cpu_ns) / max(1, time.monotonic_ns() - observer.epoch_ns)
    pacer.close()
    dispatcher.close()
    return ledger, shape.exhausted, stalled_ns, busy


def _deliver(ledger: Ledger, exhausted: bool, stalled_ns: int, busy: float, pipe: Pipe) -> None:
    for start in range(0, len(ledger.records), RECORDS_A_MESSAGE):
        pipe.send(Records(ledger.records[start : start + RECORDS_A_MESSAGE]))
    pipe.send(Delivery(ledger.received(), ledger.stride, exhausted, stalled_ns, busy))


def _fail(shape: Loop, context: dict[str, Any]) -> None:
    """An exception in a callback would else be a line in a log, and a play that never ends."""
    error = context.get("exception") or RuntimeError(context["message"])
    is_of_a_connection = isinstance(error, OSError)  # which learns of it, too, and records it
    if not is_of_a_connection and not shape.finished.done():
        shape.finished.set_exception(error)


def _allow_all_descriptors() -> None:
    """One connection a request in flight, without a cap of ours: take the most open files the system
    grants."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main(descriptor: int) -> None:
    pipe = Pipe(descriptor)
    try:
        job: Job = pipe.recv()
        if job.cpu is not None:
            os.sched_setaffinity(0, {job.cpu})
        _allow_all_descriptors()
        _deliver(*uvloop.run(_play(job, pipe)), pipe)
    except (EOFError, BrokenPipeError):
        sys.exit(1)  # the player is gone
    except OSError as error:
        pipe.send(Failure(str(error)))
    except Exception:
        pipe.send(Failure(traceback.format_exc()))


if __name__ == "__main__":
    main(int(sys.argv[1]))
