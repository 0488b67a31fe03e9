"""What the times of a play are worth: stalls are seen from the intended times, and arrivals stay Poisson."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest

from harness.client.null_process import MODEL, Pace
from harness.client.null_server import NullServer
from harness.client.player import play
from harness.client.received import Received
from harness.client.record import RequestRecord
from harness.metrics import lag_ms, percentile, ttft_from_send_ms, ttft_ms
from harness.rows import raw_frames
from harness.workload.schedule import Schedule, ScheduledRequest, poisson, write

GAP_NS = 10_000_000
STALL_S = 1.0


def constant_rate(path: Path, requests: int) -> Path:
    scheduled = tuple(
        ScheduledRequest(index, index * GAP_NS, f"Say {index}.", 2, 0.0, True, None)
        for index in range(requests)
    )
    schedule = Schedule("constant", "open", None, 1e9 / GAP_NS, requests * GAP_NS, 0, scheduled)
    write(schedule, path / "constant.jsonl")
    return path / "constant.jsonl"


@dataclass
class Stall:
    """A hook of a play that stops a process once for STALL_S."""

    find: Callable[[], psutil.Process]
    from_ns: int = 0
    to_ns: int = 0

    def __call__(self, done: int, total: int | None, seconds: float) -> None:
        if self.to_ns or seconds < 0.5:
            return
        victim = self.find()
        os.kill(victim.pid, signal.SIGSTOP)
        self.from_ns = time.monotonic_ns()
        time.sleep(STALL_S)
        self.to_ns = time.monotonic_ns()
        os.kill(victim.pid, signal.SIGCONT)


def play_with(
    stall: Stall, server: NullServer, path: Path
) -> tuple[list[RequestRecord], list[RequestRecord]]:
    """All records, and those of the requests that were due during the stall."""
    records, received, info = play(path, server.url, MODEL, workers=1, on_progress=stall)
    assert {record.status for record in records} == {"ok"}
    from_ns, to_ns = stall.from_ns - info.epoch_ns, stall.to_ns - info.epoch_ns
    caught = [record for record in records if from_ns <= record.intended_ns < to_ns]
    assert len(caught) >= STALL_S * 1e9 / GAP_NS - 1
    for record in caught:
        assert record.first_ns >= to_ns
    assert received.tokens.sum() == 2 * len(records)
    return records, caught


def one_of(name: str) -> psutil.Process:
    return next(child for child in psutil.Process().children(recursive=True) if name in child.cmdline())


def test_stall_of_the_server_is_seen_by_every_request_due_in_it(tmp_path: Path) -> None:
    """Coordinated omission: a client that waits for answers before it sends would see one slow request."""
    with NullServer(pace=Pace.from_ms(5, 1)) as server:
        stall = Stall(lambda: one_of("harness.client.null_process"))
        records, caught = play_with(stall, server, constant_rate(tmp_path, 300))
    table = raw_frames("cell", records, Received.empty())["requests.csv.gz"]
    slow = (ttft_ms(table) >= STALL_S * 1e3 / 2).sum()
    assert slow >= len(caught) // 2 - 1
    assert percentile(ttft_ms(table), 99) >= 0.9 * STALL_S * 1e3


def test_stall_of_the_client_counts_against_it_and_not_for_the_server(tmp_path: Path) -> None:
    """Latencies from the send would hide it; those from the intended time do not, and the lag tells why."""
    with NullServer(pace=Pace.from_ms(5, 1)) as server:
        stall = Stall(lambda: one_of("harness.client.worker"))
        records, caught = play_with(stall, server, constant_rate(tmp_path, 300))
    table = raw_frames("cell", records, Received.empty())["requests.csv.gz"]
    assert [record.intended_ns for record in records] == [index * GAP_NS for index in range(300)]
    assert percentile(ttft_ms(table), 99) >= 0.9 * STALL_S * 1e3
    assert percentile(lag_ms(table), 99) >= 0.9 * STALL_S * 1e3
    late = lag_ms(table)
    assert np.allclose(ttft_ms(table) - ttft_from_send_ms(table), late)
    assert (late >= STALL_S * 1e3 / 2).sum() >= len(caught) // 2 - 1


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 8])
def test_arrivals_as_sent_are_poisson(workers: int, tmp_path: Path) -> None:
    """Variance over mean of the counts in 250 ms is 1 +- 3.3 standard errors, sqrt(2 / (bins - 1)) each; on a
    quiet machine 99 % of the sends are late by no more than a small part of a bin."""
    rate_rps, duration_s, bin_s = 100, 20, 0.25
    schedule = poisson(
        ["Say it."], name="p", seed=5, rate_rps=rate_rps, duration_s=duration_s, max_tokens=(1, 1)
    )
    write(schedule, tmp_path / "p.jsonl")
    with NullServer() as server:
        records, _, info = play(tmp_path / "p.jsonl", server.url, MODEL, workers=workers)
    assert info.workers == workers
    assert [record.intended_ns for record in records] == [each.intended_ns for each in schedule.requests]
    sent_s = np.sort([record.sent_ns for record in records]) / 1e9
    counts = np.histogram(sent_s, bins=np.arange(0, duration_s + bin_s / 2, bin_s))[0]
    tolerance = 3.3 * np.sqrt(2 / (len(counts) - 1))
    assert counts.var(ddof=1) / counts.mean() == pytest.approx(1, abs=tolerance)
    lag_s = np.array([record.sent_ns - record.intended_ns for record in records]) / 1e9
    assert lag_s.min() >= 0
    assert np.percentile(lag_s, 99) < bin_s / 5
