"""Faults of other load generators, and how this client is built not to have them; see
test_public_faults.py."""

import asyncio
import hashlib
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.client import connection, exchange
from harness.client.completion import PlainEventScanner
from harness.client.connection import Connection
from harness.client.exchange import Asked, Exchange, Observer
from harness.client.loops import ClosedLoop, OpenLoop
from harness.client.null_process import MODEL, Pace
from harness.client.null_server import NullServer
from harness.client.player import play
from harness.client.record import RequestRecord
from harness.workload.schedule import Schedule, ScheduledRequest, closed_loop, write
from tests.harness.client.adversary import Adversary
from tests.harness.client.answer import ASKED, completion, framed, usage
from tests.harness.test_fault_whole_run import noting

ROOT = Path(__file__).parents[2]
MORE_THAN_A_HUNDRED = 150
GAP_NS = 5_000_000
STREAM = {b"content-type": b"text/event-stream"}


def schedule_file(folder: Path, prompts: list[str], concurrency: int | None) -> Path:
    """A closed loop of these prompts, or without a concurrency an open one with a request each 5 ms."""
    requests = tuple(
        ScheduledRequest(index, None if concurrency else index * GAP_NS, prompt, ASKED, 0.0, True, None)
        for index, prompt in enumerate(prompts)
    )
    if concurrency:
        schedule = Schedule("fault", "closed", concurrency, None, None, 0, requests)
    else:
        schedule = Schedule("fault", "open", None, 1e9 / GAP_NS, len(prompts) * GAP_NS, 0, requests)
    write(schedule, folder / "fault.jsonl")
    return folder / "fault.jsonl"


@pytest.mark.parametrize("concurrency", [MORE_THAN_A_HUNDRED, None], ids=["closed", "open"])
@pytest.mark.parametrize("workers", [1, 2])
def test_more_than_a_hundred_are_in_flight_at_once(
    workers: int, concurrency: int | None, tmp_path: Path
) -> None:
    """The server answers nobody before it has all of them: a client with a cap never gets there, and one that
    waits for answers before it sends on does not either."""
    path = schedule_file(tmp_path, [f"counted {n}" for n in range(MORE_THAN_A_HUNDRED)], concurrency)
    with Adversary(expected=MORE_THAN_A_HUNDRED) as server:
        records, _, _ = play(path, server.url, "m", workers=workers)
        assert server.most_in_flight == MORE_THAN_A_HUNDRED
    assert {record.status for record in records} == {"ok"}


def test_very_long_prompts_arrive_whole(tmp_path: Path) -> None:
    """Far more than the buffers of a socket hold, from several streams at once."""
    prompts = [f"good {number} " + "word " * 200_000 for number in range(6)]
    with Adversary() as server:
        records, _, _ = play(schedule_file(tmp_path, prompts, 3), server.url, "m", workers=1)
        assert sorted(body["prompt"] for body in server.bodies) == prompts
    assert {record.status for record in records} == {"ok"}


def test_connections_are_opened_once_and_kept(tmp_path: Path) -> None:
    """One for each slot, and the one that found out whether anybody listens."""
    path = schedule_file(tmp_path, [f"good {number}" for number in range(60)], 3)
    with Adversary() as server:
        records, _, _ = play(path, server.url, "m", workers=1)
        assert server.connections <= 3 + 1 + 3  # the first three are given up where play begins a second late
    assert sum(not record.connection_reused for record in records) == 3


@pytest.mark.parametrize("epoch_ns", [1, 10**18], ids=["all are late", "all are early"])
def test_an_open_loop_asks_for_absolute_times_whatever_the_clock_says(epoch_ns: int) -> None:
    """Neither the time that a start takes nor a stall moves a later start, and none is left out."""
    due_ns = [7 * GAP_NS * place // 3 for place in range(200)]
    asked_for: list[int] = []
    started: list[tuple[int, int]] = []
    waiting: list = []

    def call_at(deadline_ns: int, callback) -> None:
        asked_for.append(deadline_ns)
        waiting.append(callback)

    requests = SimpleNamespace(next_turn=lambda index: None, intended_ns=due_ns.__getitem__)
    dispatcher = SimpleNamespace(start=lambda index, at_ns: started.append((index, at_ns)), in_flight=1)

    async def body() -> None:
        pacer = SimpleNamespace(call_at=call_at)
        OpenLoop(iter(range(200)), requests, dispatcher, pacer, epoch_ns, 10**9).begin()
        while len(started) < 200:
            waiting.pop(0)()

    asyncio.run(body())
    assert asked_for[:200] == [epoch_ns + at_ns for at_ns in due_ns]
    assert started == list(enumerate(asked_for[:200]))


def test_a_slot_counts_from_when_it_became_free() -> None:
    """However much later the client comes to send: that wait is part of the latency."""
    free_ns = [500, 501, 777, 90_000]
    started: list[tuple[int, int]] = []
    tickets = iter(range(10))
    requests = SimpleNamespace(next_turn=lambda index: None, firsts=range(10))
    dispatcher = SimpleNamespace(start=lambda index, at_ns: started.append((index, at_ns)), in_flight=1)
    waiting: list = []

    async def body() -> None:
        pacer = SimpleNamespace(call_at=lambda deadline_ns, callback: waiting.append(callback))
        slots = SimpleNamespace(take=lambda: next(tickets))
        ClosedLoop([0], slots, None, requests, dispatcher, pacer, 100, 10**9).begin()
        waiting.pop()()
        for index, end_ns in enumerate(free_ns):
            dispatcher.on_end(index, False, end_ns)

    asyncio.run(body())
    assert started == list(enumerate([100, *free_ns]))


class Wire:
    """A transport that notes what is done with it."""

    def __init__(self) -> None:
        self.options: dict[tuple[int, int], int] = {}
        self.written: list[bytes] = []

    def get_extra_info(self, name: str) -> "Wire":
        assert name == "socket"
        return self

    def setsockopt(self, level: int, option: int, value: int) -> None:
        self.options[level, option] = value

    def write(self, data: bytes) -> None:
        self.written.append(data)


def asked_exchange(tokens: int = ASKED, keep_output: bool = False) -> Exchange:
    return Exchange(Asked(0, tokens, exact=True), 0, Observer(0, keep_output, PlainEventScanner()))


def test_stamps_are_taken_before_anything_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsing takes a second here, and no stamp has any of it."""
    clock = SimpleNamespace(now_ns=0)
    full_parse = exchange.parse

    def slow_parse(data: bytes):
        clock.now_ns += 10**9
        return full_parse(data)

    monkeypatch.setattr(connection, "monotonic_ns", lambda: clock.now_ns)
    monkeypatch.setattr(exchange, "parse", slow_parse)
    records: list[RequestRecord] = []
    opened = Connection(lambda _, ended, end_ns: records.append(ended.record(end_ns)))
    opened.connection_made(Wire())
    opened.send(asked_exchange(), b"")
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    reads = [
        [head],
        # Not in ASCII: each takes the full parse.
        [framed(completion(letter, total)) for total, letter in enumerate("äöü", start=1)],
        [framed(completion("ß", 4, "length")), b"data: [DONE]\n\n"],
        [b""],
    ]
    read_at_ns = []
    for read in reads:
        clock.now_ns += 5
        read_at_ns.append(clock.now_ns)
        body = [part if part is head else b"%x\r\n%b\r\n" % (len(part), part) for part in read]
        opened.data_received(b"".join(body) or b"0\r\n\r\n")
    (record,) = records
    assert record.status == "ok"
    assert list(record.chunk_ns) == [read_at_ns[1]] * 3 + [read_at_ns[2]]
    assert record.done_ns == read_at_ns[2]
    assert clock.now_ns == 4 * 10**9 + 4 * 5


def test_a_request_leaves_in_one_piece_at_once() -> None:
    """Two writes, or Nagle's algorithm, would add the 40 ms of a delayed acknowledgement to TTFT."""
    wire = Wire()
    opened = Connection(lambda *_: None)
    opened.connection_made(wire)
    opened.send(asked_exchange(), b"head and body")
    assert wire.written == [b"head and body"]
    assert wire.options[socket.IPPROTO_TCP, socket.TCP_NODELAY] == 1


# (what an event says, tokens it carries): role, empty text, text, tokens without text, running usage alone
SAID = st.sampled_from(["role", "empty", "text", "silent", "usage"])


@given(st.lists(st.tuples(SAID, st.integers(1, 2)), max_size=6), st.booleans(), st.booleans())
def test_an_answer_without_all_its_tokens_is_never_ok(
    said: list[tuple[str, int]], with_finish: bool, with_done: bool
) -> None:
    """And the first token is that of the first event that carries one, with or without text."""
    answer = asked_exchange()
    answer.sent(0, reused=True)
    answer.head(200, STREAM)
    total, stamps = 0, []
    for stamp_ns, (kind, tokens) in enumerate(said, start=1):
        if kind in ("text", "silent"):
            total += tokens
            stamps.append(stamp_ns)
        text = "é" if kind == "text" else ""
        content = {"choices": [], "usage": usage(total)} if kind == "usage" else completion(text, total)
        if kind == "role":
            content = {"choices": [{"index": 0, "delta": {"role": "assistant"}}]}
        answer.body(framed(content), stamp_ns)
    end_ns = len(said) + 1
    if with_finish:
        answer.body(framed(completion("", total, "length")), end_ns)
    if with_done:
        answer.body(b"data: [DONE]\n\n", end_ns)
    record = answer.record(end_ns)
    assert (record.status == "ok") == (with_done and with_finish and total == ASKED)
    assert list(record.chunk_ns) == stamps
    assert (record.first_ns, record.last_ns) == ((stamps[0], stamps[-1]) if stamps else (None, None))
    if record.status == "ok":
        assert 0 == record.sent_ns < record.first_ns <= record.last_ns <= record.done_ns
        assert sum(record.chunk_tokens) == record.output_tokens == ASKED


@pytest.mark.parametrize(
    "nothing", [completion("", None), {"choices": [{"index": 0, "delta": {"role": "assistant"}}]}]
)
def test_without_running_usage_the_first_token_is_that_of_the_first_text(nothing: dict) -> None:
    answer = asked_exchange()
    answer.head(200, STREAM)
    texts = [completion(letter, None, "length" if letter == "d" else None) for letter in "abcd"]
    for stamp_ns, content in enumerate([nothing, *texts, {"choices": [], "usage": usage(4)}], start=1):
        answer.body(framed(content), stamp_ns)
    answer.body(b"data: [DONE]\n\n", 7)
    record = answer.record(7)
    assert (record.status, list(record.chunk_ns), list(record.chunk_tokens)) == ("ok", [2, 3, 4, 5], [1] * 4)


@pytest.mark.parametrize("text", ["  \n\n  ", "\t", "word  word", "\u00a0\u200b", " a", "a "])
def test_white_space_is_kept_and_tokens_are_the_servers(text: str) -> None:
    answer = asked_exchange(keep_output=True)
    answer.head(200, STREAM)
    answer.body(framed(completion(text, 3)), 1)
    answer.body(framed(completion(text, 4, "length")), 2)
    answer.body(b"data: [DONE]\n\n", 3)
    record = answer.record(3)
    assert (record.status, record.output_text, list(record.chunk_tokens)) == ("ok", text + text, [3, 1])
    assert record.output_sha256 == hashlib.sha256((text + text).encode()).hexdigest()[:16]


def test_what_measures_has_no_tokenizer() -> None:
    """Nothing can be tokenized again, neither prompts nor answers, where there is nothing to do it with."""
    program = (
        "import sys, harness.play, harness.rows, harness.client.worker\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    imported = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert "httptools" in imported
    assert not {"tokenizers", "transformers", "sentencepiece", "tiktoken", "engine"} & set(imported)


def test_a_stall_of_the_client_in_a_closed_loop_is_seen(tmp_path: Path) -> None:
    """Its requests are due when it notices, hence never late: only the process itself knows that it stood."""
    stalled: list[float] = []

    def stall(_done: int, _total: int | None, seconds: float) -> None:
        if stalled or seconds < 0.3:
            return
        children = psutil.Process().children(recursive=True)
        worker = next(child for child in children if "harness.client.worker" in child.cmdline())
        worker.suspend()
        time.sleep(1.0)
        worker.resume()
        stalled.append(seconds)

    path = tmp_path / "schedule.jsonl"
    write(closed_loop(["a"], name="x", seed=1, concurrency=2, requests=4000, max_tokens=(16, 16)), path)
    with NullServer(pace=Pace.from_ms(20, 5)) as server:
        _, _, info = play(path, server.url, MODEL, workers=1, seconds=2.0, on_progress=stall)
    assert stalled
    assert info.stalled_ms > 800


def test_a_server_that_cuts_a_prompt_of_token_ids_is_a_mismatch(tmp_path: Path) -> None:
    """The server says 3 prompt tokens; of text it may say what it likes."""
    requests = tuple(
        ScheduledRequest(index, None, prompt, ASKED, 0.0, True, None)
        for index, prompt in enumerate(["a text", list(range(1, 1001)), [7, 8, 9]])
    )
    write(Schedule("ids", "closed", 1, None, None, 0, requests), tmp_path / "s")
    with noting("good") as server:
        records, _, _ = play(tmp_path / "s", server.url, "m", workers=1)
    assert [record.status for record in records] == ["ok", "mismatch", "ok"]
    assert records[1].error == "3 prompt tokens where 1000 were sent"
