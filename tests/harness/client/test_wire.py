"""Requests as bytes, the target URL, and the tickets that processes share."""

import itertools
import os
import subprocess
import sys
from array import array

import pytest

from harness.client.wire import (
    Target,
    TargetError,
    Tickets,
    WireRequests,
    build_wire_file,
    own_share,
    wire_bytes,
)
from harness.workload.schedule import Schedule, ScheduledRequest


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://127.0.0.1:8000", Target("127.0.0.1", 8000, "/v1/completions")),
        ("http://host", Target("host", 80, "/v1/completions")),
        ("http://host:1/v1", Target("host", 1, "/v1/completions")),
        ("http://host:1/v1/", Target("host", 1, "/v1/completions")),
        ("http://host:1/serve/m", Target("host", 1, "/serve/m/v1/completions")),
        ("http://[::1]:8000", Target("::1", 8000, "/v1/completions")),
    ],
)
def test_urls(url: str, target: Target) -> None:
    assert Target.from_url(url) == target


@pytest.mark.parametrize(
    "url",
    ["https://host", "host:8000", "http://", "http://host:99999", "http://host/?a=1", "http://u@host", ""],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(TargetError) as caught:
        Target.from_url(url)
    assert repr(url) in str(caught.value)


def test_bytes_of_a_request() -> None:
    request = ScheduledRequest(0, None, [1, 2], 5, temperature=0.0, ignore_eos=True, seed=None)
    head, _, body = wire_bytes(request, Target("::1", 80, "/v1/completions"), "m").partition(b"\r\n\r\n")
    assert body == (
        b'{"model":"m","prompt":[1,2],"max_tokens":5,"temperature":0.0,"stream":true,'
        b'"stream_options":{"include_usage":true,"continuous_usage_stats":true},"ignore_eos":true}'
    )
    assert head.split(b"\r\n") == [
        b"POST /v1/completions HTTP/1.1",
        b"Host: [::1]:80",
        b"Content-Type: application/json",
        b"Accept: text/event-stream",
        b"Accept-Encoding: identity",
        b"Content-Length: %d" % len(body),
    ]


def test_tickets_come_in_order_and_end() -> None:
    tickets = Tickets.create(3)
    assert [tickets.take() for _ in range(5)] == [0, 1, 2, None, None]
    os.close(tickets.descriptor)


def test_processes_share_tickets_without_a_gap_or_a_double() -> None:
    tickets = Tickets.create(20_000)
    program = (
        "import sys; from harness.client.wire import Tickets; tickets = Tickets(int(sys.argv[1]), 20_000)\n"
        "while (ticket := tickets.take()) is not None: print(ticket)"
    )
    takers = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tickets.descriptor)],
            pass_fds=[tickets.descriptor],
            stdout=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    taken = [[int(line) for line in taker.communicate()[0].split()] for taker in takers]
    os.close(tickets.descriptor)
    assert all(own == sorted(own) for own in taken)
    assert sorted(itertools.chain(*taken)) == list(range(20_000))


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_shares_of_an_open_loop_are_a_partition(workers: int) -> None:
    shares = [list(own_share(worker, workers, array("q", range(20)))) for worker in range(workers)]
    assert sorted(itertools.chain(*shares)) == list(range(20))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_turns_are_chained() -> None:
    """Two conversations, interleaved in the list, and a request on its own."""
    turns = [(0, None, 0), (1, None, 0), (2, 0, 5), (3, 1, 7), (4, None, 0), (5, 2, 0)]
    requests = tuple(
        ScheduledRequest(index, None, "a", 1, 0.0, True, None, after, delay_ns)
        for index, after, delay_ns in turns
    )
    schedule = Schedule("turns", "closed", 1, None, None, 0, requests)
    wire = build_wire_file(schedule, Target("h", 80, "/"), "m")
    played = WireRequests(wire)
    os.close(wire.descriptor)
    assert list(played.firsts) == [0, 1, 4]
    assert [played.next_turn(index) for index in range(6)] == [2, 3, 5, None, None, None]
    assert [played.delay_ns(index) for index in range(6)] == [0, 0, 5, 7, 0, 0]
