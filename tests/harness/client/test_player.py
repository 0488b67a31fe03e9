"""Plays against the null server: times, open and closed loops, and plays that cannot be carried through."""

import hashlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from harness.client.null_process import MODEL, Pace
from harness.client.null_server import NullServer
from harness.client.player import PlayError, cpus_for, default_workers, play
from harness.schema import RECEIVED_BIN_MS
from harness.workload.schedule import Schedule, ScheduledRequest, ScheduleError, closed_loop, poisson, write

PROMPTS = [f"Say {word}." for word in ("one", "two", "three", "four")]
TTFT_MS, TPOT_MS = 20.0, 4.0


@pytest.fixture(scope="module")
def paced() -> Iterator[NullServer]:
    with NullServer(pace=Pace.from_ms(TTFT_MS, TPOT_MS)) as server:
        yield server


@pytest.fixture(scope="module")
def flat_out() -> Iterator[NullServer]:
    with NullServer(processes=2) as server:
        yield server


def closed(path: Path, requests: int, concurrency: int, max_tokens: tuple[int, int]) -> Path:
    schedule = closed_loop(
        PROMPTS, name="closed", seed=1, concurrency=concurrency, requests=requests, max_tokens=max_tokens
    )
    write(schedule, path / "closed.jsonl")
    return path / "closed.jsonl"


def workers_of_this_process() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if "harness.client.worker" in child.cmdline()
    ]


def test_no_token_is_seen_before_it_can_be(paced: NullServer, tmp_path: Path) -> None:
    """The server's times are known, and it is never early: neither can the client be."""
    records, _, _ = play(closed(tmp_path, 24, 6, (1, 12)), paced.url, MODEL, workers=2)
    assert {record.status for record in records} == {"ok"}
    for record in records:
        assert record.first_ns - record.sent_ns >= TTFT_MS * 1e6
        assert record.output_tokens == sum(record.chunk_tokens) == record.max_tokens
        tokens = 0
        for stamp_ns, count in record.chunks:
            tokens += count
            assert stamp_ns - record.sent_ns >= (TTFT_MS + (tokens - 1) * TPOT_MS) * 1e6
        assert record.token_count_method == "continuous_usage"


def test_open_loop_sends_everything_and_nothing_early(paced: NullServer, tmp_path: Path) -> None:
    schedule = poisson(PROMPTS, name="open", seed=2, rate_rps=60, duration_s=1.0, max_tokens=(1, 8))
    sha256 = write(schedule, tmp_path / "open.jsonl")
    calls: list[tuple[int, int | None, float]] = []
    records, _, info = play(
        tmp_path / "open.jsonl",
        paced.url,
        MODEL,
        workers=3,
        window_ns=(1, 2),
        on_progress=lambda *values: calls.append(values),
    )
    assert [record.intended_ns for record in records] == [
        request.intended_ns for request in schedule.requests
    ]
    assert all(record.sent_ns >= record.intended_ns for record in records)
    assert [record.worker for record in records] == [record.index % 3 for record in records]
    assert {record.status for record in records} == {"ok"}
    assert (info.schedule_sha256, info.workers, info.window_ns, info.exhausted) == (sha256, 3, (1, 2), False)
    assert info.played_s == max(record.done_ns for record in records) / 1e9
    assert info.started_at.endswith("+00:00")
    done, totals, seconds = zip(*calls, strict=True)
    assert list(done) == sorted(done)
    assert done[-1] == len(records)
    assert set(totals) == {len(records)}
    assert list(seconds) == sorted(seconds)


def test_long_plays_keep_the_events_of_some_requests(
    flat_out: NullServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.client.player.EVENTS_KEPT", 1_000)
    path = closed(tmp_path, 400, 8, (20, 20))
    records, received, info = play(path, flat_out.url, MODEL, workers=2)
    assert info.events_stride >= 8
    for record in records:
        assert len(record.chunks) == (0 if record.index % info.events_stride else 20)
        assert (record.events, record.output_tokens, record.first_event_tokens) == (20, 20, 1)
        assert 0 < record.first_ns <= record.last_ns
    assert sum(len(record.chunks) for record in records) <= 1_000
    assert received.events.sum() == received.tokens.sum() == 400 * 20
    assert 400 <= received.reads.sum() <= 400 * 20


@pytest.mark.slow
def test_memory_of_a_worker_that_takes_three_million_events(flat_out: NullServer, tmp_path: Path) -> None:
    """All of them would take 36 MB. A worker grows by its share of EVENTS_KEPT (5 MB), a record a request
    (5 MB) and what is in flight (a few MB): by less than 20 MB in all."""
    sizes: list[int] = []

    def measure(done: int, total: int | None, seconds: float) -> None:
        if done < total:
            sizes.append(workers_of_this_process()[0].memory_info().rss)

    path = closed(tmp_path, 6_000, 64, (512, 512))
    records, received, info = play(path, flat_out.url, MODEL, workers=1, on_progress=measure)
    assert received.events.sum() == 6_000 * 512
    assert info.events_stride == 8
    assert sum(len(record.chunk_ns) for record in records) == 6_000 // 8 * 512
    assert max(sizes) - sizes[0] < 20e6


def test_received_is_what_the_records_hold(paced: NullServer, tmp_path: Path) -> None:
    records, received, info = play(closed(tmp_path, 20, 4, (1, 9)), paced.url, MODEL, workers=2)
    assert info.events_stride == 1
    stamps_ns = [stamp_ns for record in records for stamp_ns in record.chunk_ns]
    bins, events = np.unique(np.array(stamps_ns) // (RECEIVED_BIN_MS * 10**6), return_counts=True)
    assert received.t_ms.tolist() == (bins * RECEIVED_BIN_MS).tolist()
    assert received.events.tolist() == events.tolist()
    assert received.reads.sum() == sum(len(set(record.chunk_ns)) for record in records)


def test_compressed_schedule(flat_out: NullServer, tmp_path: Path) -> None:
    schedule = closed_loop(PROMPTS, name="gz", seed=1, concurrency=1, requests=2, max_tokens=(1, 1))
    sha256 = write(schedule, tmp_path / "gz.jsonl.gz")
    records, _, info = play(tmp_path / "gz.jsonl.gz", flat_out.url, MODEL, workers=1)
    assert (len(records), info.schedule_sha256) == (2, sha256)


def test_late_requests_are_sent_at_once_and_keep_their_times(flat_out: NullServer, tmp_path: Path) -> None:
    """More than can be sent in time: all due within the first microsecond."""
    requests = tuple(
        ScheduledRequest(index, index, f"Say {index}.", 2, temperature=0.0, ignore_eos=True, seed=None)
        for index in range(300)
    )
    write(Schedule("burst", "open", None, 1.0, 1_000, seed=0, requests=requests), tmp_path / "burst.jsonl")
    records, _, _ = play(tmp_path / "burst.jsonl", flat_out.url, MODEL, workers=2)
    assert [record.intended_ns for record in records] == list(range(300))
    assert {record.status for record in records} == {"ok"}
    assert all(record.sent_ns >= record.intended_ns for record in records)


def test_timed_closed_loop_starts_a_prefix_of_the_list(flat_out: NullServer, tmp_path: Path) -> None:
    path = closed(tmp_path, 6_000, 3, (2, 30))
    records, _, info = play(path, flat_out.url, MODEL, workers=2, seconds=0.3)
    assert [record.index for record in records] == list(range(len(records)))
    assert all(record.intended_ns < 0.3e9 for record in records)
    assert sum(record.intended_ns == 0 for record in records) == 3  # each slot is free at the start
    assert {record.status for record in records} == {"ok"}
    assert not info.exhausted
    assert info.cpus == () or len(info.cpus) == info.workers


def test_closed_loop_says_when_its_list_was_too_short(flat_out: NullServer, tmp_path: Path) -> None:
    records, _, info = play(closed(tmp_path, 6, 2, (2, 2)), flat_out.url, MODEL, workers=1, seconds=30)
    assert len(records) == 6
    assert info.exhausted


def test_output_is_kept_only_when_asked_and_hashed_always(flat_out: NullServer, tmp_path: Path) -> None:
    path = closed(tmp_path, 2, 1, (5, 5))
    with_text, _, _ = play(path, flat_out.url, MODEL, workers=1, keep_output=True)
    without, _, _ = play(path, flat_out.url, MODEL, workers=1)
    assert all(len(record.output_text.split()) == 5 for record in with_text)
    assert all(record.output_text is None for record in without)
    assert [record.output_sha256 for record in with_text] == [record.output_sha256 for record in without]
    for record in with_text:
        assert record.output_sha256 == hashlib.sha256(record.output_text.encode()).hexdigest()[:16]


def test_server_that_dies_is_recorded_not_raised(tmp_path: Path) -> None:
    path = closed(tmp_path, 24, 2, (10, 10))
    with NullServer(pace=Pace.from_ms(1, 20)) as server:
        victim = next(child for child in psutil.Process().children() if str(server.port) in child.cmdline())

        def kill_server(done: int, total: int | None, seconds: float) -> None:
            if done:
                victim.kill()

        records, _, _ = play(path, server.url, MODEL, workers=1, on_progress=kill_server)
    assert len(records) == 24
    assert {record.status for record in records} <= {"ok", "reset", "truncated"}
    refused = records[-1]
    assert (refused.status, refused.sent_ns, refused.http_status) == ("reset", None, None)
    assert "cannot connect" in refused.error


def test_nobody_listens(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    with pytest.raises(PlayError, match=f"nothing takes connections at 127.0.0.1:{port}"):
        play(closed(tmp_path, 2, 1, (1, 1)), f"http://127.0.0.1:{port}", MODEL, workers=1)


def test_dead_worker_is_an_error_and_not_a_hang(paced: NullServer, tmp_path: Path) -> None:
    victims: list[psutil.Process] = []

    def kill_one(done: int, total: int | None, seconds: float) -> None:
        if done and not victims:
            victims.append(workers_of_this_process()[-1])
            victims[0].kill()

    path = closed(tmp_path, 2_000, 4, (4, 4))
    with pytest.raises(PlayError, match=r"process \d ended with exit code -9"):
        play(path, paced.url, MODEL, workers=2, on_progress=kill_one)
    assert victims
    assert workers_of_this_process() == []


PLAYING = """
import sys
from pathlib import Path
from harness.client.player import play
play(Path(sys.argv[1]), sys.argv[2], "null", workers=2, on_progress=lambda *a: print(*a, flush=True))
"""


@pytest.fixture
def player(paced: NullServer, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """A process in the middle of a play, and its two workers."""
    path = closed(tmp_path, 2_000, 4, (4, 4))
    process = subprocess.Popen(
        [sys.executable, "-c", PLAYING, str(path), paced.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.readline()
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) == 2
    yield process, workers
    process.kill()
    process.communicate()


def test_ctrl_c_ends_the_workers(player: tuple[subprocess.Popen[str], list[psutil.Process]]) -> None:
    process, workers = player
    process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in process.communicate(timeout=60)[1]
    assert psutil.wait_procs(workers, timeout=60)[1] == []


def test_workers_do_not_outlive_a_killed_player(
    player: tuple[subprocess.Popen[str], list[psutil.Process]],
) -> None:
    process, workers = player
    process.kill()
    assert psutil.wait_procs(workers, timeout=60)[1] == []


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"workers": 0}, "workers 0 must be above 0"),
        ({"timeout_s": -1}, "timeout_s -1"),
        ({"drain_s": 0}, "drain_s 0"),
        ({"seconds": 0.0}, "seconds 0.0"),
        ({"seconds": float("nan")}, "seconds nan"),
        ({"base_url": "ftp://x"}, "ftp://x"),
    ],
)
def test_bad_arguments_are_named(changes: dict, named: str, tmp_path: Path) -> None:
    arguments = {"base_url": "http://127.0.0.1:9", "model": MODEL, "workers": 1} | changes
    with pytest.raises(ValueError, match=named):
        play(closed(tmp_path, 2, 1, (1, 1)), **arguments)


def test_open_schedules_have_their_own_length(tmp_path: Path) -> None:
    write(poisson(PROMPTS, name="o", seed=1, rate_rps=5, duration_s=2, max_tokens=(1, 1)), tmp_path / "o")
    with pytest.raises(ValueError, match="seconds 3 given"):
        play(tmp_path / "o", "http://127.0.0.1:9", MODEL, workers=1, seconds=3)


def test_damaged_schedule_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("{}\n")
    with pytest.raises(ScheduleError, match="line 1"):
        play(tmp_path / "s", "http://127.0.0.1:9", MODEL, workers=1)


def test_a_quarter_of_the_cores_by_default() -> None:
    assert default_workers() == max(1, len(os.sched_getaffinity(0)) // 4)


@pytest.mark.parametrize(
    ("cores", "workers", "pinned"),
    [
        ({0, 1}, 1, ()),  # the server needs them
        ({0, 1, 2, 3}, 1, (3,)),
        ({0, 2, 4, 6, 9}, 2, (6, 9)),
        ({0, 1, 2, 3}, 3, ()),
    ],
)
def test_workers_are_pinned_where_there_is_room(
    cores: set[int], workers: int, pinned: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cores)
    assert cpus_for(workers) == pinned
