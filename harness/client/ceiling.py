"""How many events a second the client can take on this machine, measured against the null server.

The number stands against the events a second of a measured cell: a client near its ceiling measures itself.

    python -m harness.client.ceiling --workers 1
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.client.null_process import MODEL
from harness.client.null_server import NullServer
from harness.client.player import default_workers, play
from harness.client.record import RequestRecord
from harness.workload.schedule import closed_loop, write

RAMP_S = 0.5
MAX_EVENTS_PER_WORKER_S = 250_000
"""More than a worker can take, so that the list of requests outlasts the measurement."""


@dataclass(frozen=True)
class Ceiling:
    """Events received a second inside a window, every event being one token of its stream.

    `events_per_read` tells how they came: the null server writes each event on its own, but when the client
    falls behind, the kernel joins them, and a joined event is cheaper to take than one that wakes the client.
    """

    events_per_s: float
    events_per_read: float
    workers: int
    server_processes: int
    concurrency: int
    tokens: int
    window_s: float


def measure_ceiling(
    *,
    workers: int,
    window_s: float = 3.0,
    concurrency: int = 64,
    tokens: int = 128,
    server_processes: int | None = None,
) -> Ceiling:
    """Play a closed loop of `concurrency` streams of `tokens` tokens against a flat-out null server here.

    Give the concurrency and answer length of what is measured: sending a request and closing its record cost
    the client as much as some ten events.

    `server_processes` defaults to one for each worker. Takes about window_s + 2 s. Raises ValueError for
    values that are not above 0, and what `play` raises; RuntimeError when the answers were not all as asked.
    """
    if not window_s > 0:
        raise ValueError(f"window_s {window_s} must be above 0")
    server_processes = server_processes or workers
    play_s = RAMP_S + window_s
    schedule = closed_loop(
        ["How fast can you listen?"],
        name="ceiling",
        seed=0,
        concurrency=concurrency,
        requests=concurrency + round(workers * MAX_EVENTS_PER_WORKER_S * play_s / tokens),
        max_tokens=(tokens, tokens),
    )
    with tempfile.TemporaryDirectory() as folder, NullServer(processes=server_processes) as server:
        path = Path(folder) / "ceiling.jsonl"
        write(schedule, path)
        records, info = play(path, server.url, MODEL, workers=workers, seconds=play_s)
    faults = [record for record in records if record.status != "ok"]
    if faults:
        raise RuntimeError(
            f"{len(faults)} of {len(records)} null answers failed, the first: {faults[0].error}"
        )
    start_ns, end_ns = round(RAMP_S * 1e9), round(play_s * 1e9)
    events, reads = _count(records, start_ns, end_ns)
    return Ceiling(
        events_per_s=events / window_s,
        events_per_read=events / max(reads, 1),
        workers=info.workers,
        server_processes=server_processes,
        concurrency=concurrency,
        tokens=tokens,
        window_s=window_s,
    )


def _count(records: list[RequestRecord], start_ns: int, end_ns: int) -> tuple[int, int]:
    """Events received in [start_ns, end_ns), and the socket reads that brought them: events of a read share
    its stamp."""
    events = reads = 0
    for record in records:
        stamps = [stamp for stamp in record.chunk_ns if start_ns <= stamp < end_ns]
        events += len(stamps)
        reads += len(set(stamps))
    return events, reads


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m harness.client.ceiling", description="Events a second that the client can take here."
    )
    parser.add_argument(
        "--workers", type=int, default=default_workers(), help="client processes (%(default)s)"
    )
    parser.add_argument("--servers", type=int, help="null server processes (default: as many as workers)")
    parser.add_argument("--concurrency", type=int, default=64, help="streams kept open (%(default)s)")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of each answer (%(default)s)")
    parser.add_argument("--window-s", type=float, default=3.0, help="seconds measured (%(default)s)")
    options = parser.parse_args()
    try:
        ceiling = measure_ceiling(
            workers=options.workers,
            window_s=options.window_s,
            concurrency=options.concurrency,
            tokens=options.tokens,
            server_processes=options.servers,
        )
    except (ValueError, OSError, RuntimeError) as error:
        print(f"ceiling: {error}", file=sys.stderr)
        return 2
    print(f"{len(os.sched_getaffinity(0))} cores: {asdict(ceiling)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
