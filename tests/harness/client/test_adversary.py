"""What the client makes of each misbehaviour of a server: status, error, token accounting."""

from pathlib import Path

import pytest

from harness.client.player import play
from harness.client.record import RequestRecord
from harness.workload.schedule import Schedule, ScheduledRequest, write
from tests.harness.client.adversary import ASKED, TRUTH, Adversary


def schedule_of(prompts: list[str], concurrency: int) -> Schedule:
    requests = tuple(
        ScheduledRequest(index, None, prompt, ASKED, temperature=0.0, ignore_eos=True, seed=None)
        for index, prompt in enumerate(prompts)
    )
    return Schedule("adversary", "closed", concurrency, None, None, seed=0, requests=requests)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RequestRecord]:
    """Each behaviour with a good answer after it, so that what it leaves behind would show."""
    path: Path = tmp_path_factory.mktemp("adversary") / "schedule.jsonl"
    names = [name for behaviour in TRUTH for name in (behaviour, "good")]
    write(schedule_of(names, 4), path)
    with Adversary() as server:
        played, _ = play(path, server.url, "m", workers=1, timeout_s=60, keep_output=True)
    assert [record.index for record in played] == list(range(len(names)))
    assert [record.status for record in played[1::2]] == ["ok"] * len(TRUTH)
    return dict(zip(TRUTH, played[::2], strict=True))


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
        records, info = play(
            tmp_path / "s.jsonl", server.url, "m", workers=1, seconds=0.2, drain_s=0.3, timeout_s=60
        )
    assert [record.status for record in records] == ["timeout"] * 2
    assert all("after the last start" in record.error for record in records)
    assert not info.exhausted


def test_failed_slots_rest_and_are_not_retried(tmp_path: Path) -> None:
    """One request, one attempt: a server that refuses sees each request once, and not all of them at once."""
    write(schedule_of(["unavailable"] * 500, 2), tmp_path / "s.jsonl")
    with Adversary() as server:
        records, _ = play(tmp_path / "s.jsonl", server.url, "m", workers=1, seconds=0.5)
        assert len(server.bodies) == len(records)
    assert {record.status for record in records} == {"http_error"}
    by_slot = sorted(record.intended_ns for record in records)
    assert len(records) <= 2 * 6
    assert by_slot[2] >= 100e6


def test_never_more_than_c_in_flight(tmp_path: Path) -> None:
    write(schedule_of([f"counted {number}" for number in range(60)], 5), tmp_path / "s.jsonl")
    with Adversary(expected=5) as server:
        records, info = play(tmp_path / "s.jsonl", server.url, "m", workers=2)
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
