"""What the client makes of each misbehaviour of a server: status, error, tokens, metrics, verdict."""

import math
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

from harness.client.player import play
from harness.client.received import Tally
from harness.client.record import RequestRecord
from harness.metrics import Slo, Window, cell_metrics, e2e_ms, lag_ms, tpot_ms, ttft_ms
from harness.rows import raw_frames
from harness.schema import RECEIVED_BIN_MS
from harness.verdict import Limits, Surroundings, judge
from harness.workload.schedule import Schedule, ScheduledRequest, write
from tests.harness.client.adversary import Adversary
from tests.harness.client.answer import ASKED
from tests.harness.client.http_behaviours import TRUTH


def schedule_of(prompts: list[str], concurrency: int) -> Schedule:
    requests = tuple(
        ScheduledRequest(index, None, prompt, ASKED, temperature=0.0, ignore_eos=True, seed=None)
        for index, prompt in enumerate(prompts)
    )
    return Schedule("adversary", "closed", concurrency, None, None, seed=0, requests=requests)


@dataclass(frozen=True)
class Observed:
    """What the client recorded of a behaviour and of the good answer after it (in which what the behaviour
    leaves behind would show), and when the server wrote (CLOCK_MONOTONIC, as ns from the start of play)."""

    record: RequestRecord
    good: RequestRecord
    writes_ns: list[int]

    def frames(self) -> dict[str, pd.DataFrame]:
        """The raw tables of a cell of these two."""
        tally = Tally(RECEIVED_BIN_MS)
        for record in (self.record, self.good):
            tally.add(record.chunk_ns, record.chunk_tokens)
        return raw_frames("cell", [self.record, self.good], tally.received())


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Observed]:
    path: Path = tmp_path_factory.mktemp("adversary") / "schedule.jsonl"
    prompts = [prompt for name in TRUTH for prompt in (name, f"good after {name}")]
    write(schedule_of(prompts, 4), path)
    with Adversary() as server:
        played, received, info = play(path, server.url, "m", workers=1, timeout_s=60, keep_output=True)
    assert [record.index for record in played] == list(range(len(prompts)))
    assert received.tokens.sum() == sum(sum(record.chunk_tokens) for record in played)
    return {
        name: Observed(
            record, good, [write_ns - info.epoch_ns for write_ns in server.answers[name].writes_ns]
        )
        for name, record, good in zip(TRUTH, played[::2], played[1::2], strict=True)
    }


@pytest.fixture
def records(observed: dict[str, Observed]) -> dict[str, RequestRecord]:
    return {name: seen.record for name, seen in observed.items()}


@pytest.mark.parametrize("name", TRUTH)
def test_record_tells_the_truth(name: str, records: dict[str, RequestRecord]) -> None:
    record, truth = records[name], TRUTH[name]
    assert (record.status, record.status == "ok") == (truth.status, record.error == "")
    assert truth.error in record.error
    assert record.output_tokens == truth.tokens
    assert tuple(record.chunk_tokens) == truth.chunks
    assert record.token_count_method == truth.method
    assert record.output_text == truth.text
    for name, value in truth.more.items():
        assert getattr(record, name) == value, name


@pytest.mark.parametrize("name", TRUTH)
def test_times_are_in_order(name: str, records: dict[str, RequestRecord]) -> None:
    record = records[name]
    times = [record.intended_ns, record.sent_ns, *record.chunk_ns, record.done_ns]
    assert times == sorted(times)
    if record.chunk_ns:
        assert (record.first_ns, record.last_ns) == (record.chunk_ns[0], record.chunk_ns[-1])
        assert record.first_event_tokens == record.chunk_tokens[0]
        assert record.events == len(TRUTH[name].chunks)
    else:
        assert (record.first_ns, record.last_ns, record.first_event_tokens) == (None, None, None)


@pytest.mark.parametrize("name", TRUTH)
def test_the_next_answer_is_not_touched(name: str, observed: dict[str, Observed]) -> None:
    good = observed[name].good
    assert (good.status, good.error, list(good.chunk_tokens)) == ("ok", "", [1, 1, 1, 1])


@pytest.mark.parametrize("name", TRUTH)
def test_metrics_of_the_request(name: str, observed: dict[str, Observed]) -> None:
    """By their formulas from the record, which lies between what the server did: it never writes after the
    client has read."""
    seen, truth = observed[name], TRUTH[name]
    record = seen.record
    row = seen.frames()["requests.csv.gz"].iloc[:1]
    assert lag_ms(row)[0] == (record.sent_ns - record.intended_ns) / 1e6 >= 0
    if truth.status != "ok":
        assert [ttft_ms(row)[0], tpot_ms(row)[0], e2e_ms(row)[0]] == [math.inf] * 3
        return
    assert record.sent_ns <= seen.writes_ns[0] <= record.first_ns
    assert ttft_ms(row)[0] == (record.first_ns - record.intended_ns) / 1e6
    assert e2e_ms(row)[0] == (record.last_ns - record.intended_ns) / 1e6
    later_tokens = sum(truth.chunks[1:])
    if later_tokens:
        assert tpot_ms(row)[0] == pytest.approx((record.last_ns - record.first_ns) / later_tokens / 1e6)
    else:
        assert math.isnan(tpot_ms(row)[0])


@pytest.mark.parametrize("name", TRUTH)
def test_verdict_and_metrics_of_the_cell(name: str, observed: dict[str, Observed]) -> None:
    frames, truth = observed[name].frames(), TRUTH[name]
    tables = (frames[f"{table}.csv.gz"] for table in ("requests", "events", "received"))
    metrics = cell_metrics(*tables, Window(0, 60 * 10**9), Slo(ttft_ms=60_000, tpot_ms=60_000))
    ok = truth.status == "ok"
    keeps_slo = ok and len(truth.chunks) > 1  # all tokens at once have no TPOT to keep
    assert (metrics.requests, metrics.failed, metrics.attainment) == (2, 1 - ok, (1 + keeps_slo) / 2)
    assert metrics.output_tokens == sum(truth.chunks) + ASKED  # received is received
    limits = Limits(lag_p99_ms=60_000)
    verdict = judge(metrics, limits, Surroundings(None, False, False, None, None, ()))
    expected = {"ok": [], "mismatch": ["token_mismatch"]}.get(truth.status, ["failed_requests"])
    assert [reason.partition(":")[0] for reason in verdict.reasons] == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", TRUTH)
def test_stamps_are_those_of_the_servers_writes(name: str, observed: dict[str, Observed]) -> None:
    """On a quiet machine an event is stamped within 20 ms of the write that completed it."""
    seen = observed[name]
    for stamp_ns in seen.record.chunk_ns:
        latest_write_ns = seen.writes_ns[bisect_right(seen.writes_ns, stamp_ns) - 1]
        assert 0 <= stamp_ns - latest_write_ns < 20e6


def test_stalls_end_at_the_time_limit(tmp_path: Path) -> None:
    names = ["stall", "stall_before_the_answer", "stall_after_done"]
    write(schedule_of(names, 3), tmp_path / "s.jsonl")
    with Adversary() as server:
        stalled, silent, done = play(tmp_path / "s.jsonl", server.url, "m", workers=1, timeout_s=1.5)[0]
    assert (stalled.status, stalled.error) == ("timeout", "no end within 1.5 s")
    assert list(stalled.chunk_tokens) == [1]
    assert (silent.status, silent.http_status, silent.events) == ("timeout", None, 0)
    for record in (stalled, silent):
        assert record.done_ns - record.sent_ns >= 1.5e9
    assert (done.status, done.output_tokens) == ("ok", 4)


def test_drain_is_limited(tmp_path: Path) -> None:
    write(schedule_of(["stall"] * 20, 2), tmp_path / "s.jsonl")
    with Adversary() as server:
        records, _, info = play(
            tmp_path / "s.jsonl", server.url, "m", workers=1, seconds=0.2, drain_s=0.3, timeout_s=60
        )
    assert [record.status for record in records] == ["timeout"] * 2
    assert all("after the last start" in record.error for record in records)
    assert not info.exhausted


def test_failed_slots_rest_and_are_not_retried(tmp_path: Path) -> None:
    """One request, one attempt: a server that refuses sees each request once, and not all of them at once."""
    write(schedule_of(["unavailable"] * 500, 2), tmp_path / "s.jsonl")
    with Adversary() as server:
        records, _, _ = play(tmp_path / "s.jsonl", server.url, "m", workers=1, seconds=0.5)
        assert len(server.bodies) == len(records)
    assert {record.status for record in records} == {"http_error"}
    by_slot = sorted(record.intended_ns for record in records)
    assert len(records) <= 2 * 6
    assert by_slot[2] >= 100e6


def test_never_more_than_c_in_flight(tmp_path: Path) -> None:
    write(schedule_of([f"counted {number}" for number in range(60)], 5), tmp_path / "s.jsonl")
    with Adversary(expected=5) as server:
        records, _, info = play(tmp_path / "s.jsonl", server.url, "m", workers=2)
        assert server.most_in_flight == 5
        assert server.connections < len(records)
    assert info.workers == 2
    assert {record.worker for record in records} == {0, 1}
    assert [record.index for record in records] == list(range(60))
    assert {record.status for record in records} == {"ok"}
    events = sorted([(r.intended_ns, 1) for r in records] + [(r.done_ns, -1) for r in records])
    in_flight = most = 0
    for _, step in events:
        in_flight += step
        most = max(most, in_flight)
    assert most == 5


def test_body_asks_the_same_of_every_system(tmp_path: Path) -> None:
    request = ScheduledRequest(0, None, "good ä", ASKED, temperature=0.5, ignore_eos=False, seed=3)
    write(Schedule("body", "closed", 1, None, None, 0, (request,)), tmp_path / "s.jsonl")
    with Adversary() as server:
        play(tmp_path / "s.jsonl", server.url + "/v1/", "some/model", workers=1)
    assert server.bodies == [
        {
            "model": "some/model",
            "prompt": "good ä",
            "max_tokens": ASKED,
            "temperature": 0.5,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "seed": 3,
        }
    ]
