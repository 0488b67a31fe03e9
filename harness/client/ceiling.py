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
from harness.client.received import Received
from harness.schema import RECEIVED_BIN_MS
from harness.workload.schedule import closed_loop, write

RAMP_S = 0.5
MAX_EVENTS_PER_WORKER_S = 500_000
MAX_REQUESTS_PER_WORKER_S = 20_000
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

    `server_processes` defaults to one for each worker, `window_s` counts in whole bins of Received. Takes
    about window_s + 2 s. Raises ValueError for values that are too small, and what `play` raises;
    RuntimeError when the answers were not all as asked.
    """
    if not window_s >= RECEIVED_BIN_MS / 1e3:
        raise ValueError(f"window_s {window_s} must be at least {RECEIVED_BIN_MS / 1e3}")
    window_s = round(window_s * 1e3 / RECEIVED_BIN_MS) * RECEIVED_BIN_MS / 1e3
    server_processes = server_processes or workers
    play_s = RAMP_S + window_s
    requests_per_s = workers * min(MAX_EVENTS_PER_WORKER_S / tokens, MAX_REQUESTS_PER_WORKER_S)
    schedule = closed_loop(
        ["How fast can you listen?"],
        name="ceiling",
        seed=0,
        concurrency=concurrency,
        requests=concurrency + round(requests_per_s * play_s),
        max_tokens=(tokens, tokens),
    )
    with tempfile.TemporaryDirectory() as folder, NullServer(processes=server_processes) as server:
        path = Path(folder) / "ceiling.jsonl"
        write(schedule, path)
        records, received, info = play(path, server.url, MODEL, workers=workers, seconds=play_s)
    faults = [record for record in records if record.status != "ok"]
    if faults:
        raise RuntimeError(
            f"{len(faults)} of {len(records)} null answers failed, the first: {faults[0].error}"
        )
    if info.exhausted:
        raise RuntimeError(f"all {len(records)} requests were played before {play_s:g} s were over")
    events, reads = _count(received, RAMP_S * 1e3, play_s * 1e3)
    return Ceiling(
        events_per_s=events / window_s,
        events_per_read=events / max(reads, 1),
        workers=info.workers,
        server_processes=server_processes,
        concurrency=concurrency,
        tokens=tokens,
        window_s=window_s,
    )


def _count(received: Received, start_ms: float, end_ms: float) -> tuple[int, int]:
    """Events received in the bins that start in [start_ms, end_ms), and the reads that brought them."""
    inside = (received.t_ms >= start_ms) & (received.t_ms < end_ms)
    return int(received.events[inside].sum()), int(received.reads[inside].sum())


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
