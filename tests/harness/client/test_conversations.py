"""Conversations turn by turn, in both kinds of loops, and slots that start spread over time."""

import itertools
from pathlib import Path

import pytest

from harness.client.null_process import MODEL, Pace
from harness.client.null_server import NullServer
from harness.client.player import play
from harness.client.record import RequestRecord
from harness.workload.schedule import Schedule, ScheduledRequest, write
from tests.harness.client.adversary import Adversary
from tests.harness.client.answer import ASKED

MS = 1_000_000
DELAY_NS = 30 * MS


def turns(
    prompts: list[list[str]], *, starts_ns: list[int] | None = None, delay_ns: int = 0
) -> tuple[ScheduledRequest, ...]:
    """Conversations one after the other, of these prompts; a later turn waits `delay_ns`."""
    requests: list[ScheduledRequest] = []
    for number, conversation in enumerate(prompts):
        for turn, prompt in enumerate(conversation):
            index = len(requests)
            due_ns = starts_ns[number] if starts_ns and turn == 0 else None
            after, wait_ns = (index - 1, delay_ns) if turn else (None, 0)
            requests.append(ScheduledRequest(index, due_ns, prompt, ASKED, 0.0, True, None, after, wait_ns))
    return tuple(requests)


def closed(path: Path, requests: tuple, concurrency: int, start_over_ns: int = 0) -> Path:
    schedule = Schedule("turns", "closed", concurrency, None, None, 0, requests, start_over_ns=start_over_ns)
    write(schedule, path / "turns.jsonl")
    return path / "turns.jsonl"


def opened(path: Path, requests: tuple) -> Path:
    write(Schedule("turns", "open", None, 1.0, 10**9, 0, requests), path / "turns.jsonl")
    return path / "turns.jsonl"


@pytest.fixture(scope="module")
def server():
    with NullServer(pace=Pace.from_ms(5, 1)) as running:
        yield running


def by_conversation(records: list[RequestRecord], turns: int) -> list[list[RequestRecord]]:
    return [records[start : start + turns] for start in range(0, len(records), turns)]


def check_turns(conversation: list[RequestRecord], delay_ns: int) -> None:
    for before, after in itertools.pairwise(conversation):
        # The end of a turn is that of the HTTP answer, which may come a read after [DONE].
        assert after.intended_ns - delay_ns >= before.done_ns
        assert after.sent_ns >= after.intended_ns
        assert after.worker == before.worker


@pytest.mark.parametrize("delay_ns", [0, DELAY_NS])
def test_closed_loop_plays_turn_by_turn(delay_ns: int, server: NullServer, tmp_path: Path) -> None:
    requests = turns([["a", "b", "c"]] * 8, delay_ns=delay_ns)
    records, received, info = play(closed(tmp_path, requests, 3), server.url, MODEL, workers=2)
    assert [record.status for record in records] == ["ok"] * 24
    assert received.tokens.sum() == 24 * ASKED
    conversations = by_conversation(records, 3)
    for conversation in conversations:
        check_turns(conversation, delay_ns)
    # Never more than three conversations at once.
    steps = sorted(
        [(each[0].intended_ns, 1) for each in conversations]
        + [(each[-1].done_ns, -1) for each in conversations]
    )
    at_once = [sum(step for _, step in steps[: end + 1]) for end in range(len(steps))]
    assert max(at_once) == 3
    assert not info.exhausted


def test_timed_closed_loop_starts_no_turn_after_its_end(server: NullServer, tmp_path: Path) -> None:
    requests = turns([["a", "b", "c"]] * 1_000, delay_ns=DELAY_NS)
    path = closed(tmp_path, requests, 4)
    records, _, info = play(path, server.url, MODEL, workers=2, seconds=0.25)
    assert all(record.intended_ns < 0.25e9 for record in records)
    assert {record.status for record in records} == {"ok"}
    assert not info.exhausted
    played = {record.index for record in records}
    assert {index // 3 for index in played} == set(range(max(played) // 3 + 1))  # conversations 0 to the last
    assert all(index % 3 == 0 or index - 1 in played for index in played)


def test_timed_closed_loop_of_too_few_conversations(server: NullServer, tmp_path: Path) -> None:
    """The last conversations are played to their ends before it says so."""
    requests = turns([["a", "b", "c"]] * 3, delay_ns=DELAY_NS)
    records, _, info = play(closed(tmp_path, requests, 2), server.url, MODEL, workers=1, seconds=30)
    assert [record.status for record in records] == ["ok"] * 9
    assert info.exhausted


def test_failed_turn_ends_its_conversation_in_a_closed_loop(tmp_path: Path) -> None:
    requests = turns([["good 1", "unavailable 1", "good 2"], ["good 3", "good 4", "good 5"]])
    with Adversary() as adversary:
        records, _, _ = play(closed(tmp_path, requests, 1), adversary.url, "m", workers=1)
        assert "good 2" not in adversary.answers
    assert [record.index for record in records] == [0, 1, 3, 4, 5]
    assert [record.status for record in records] == ["ok", "http_error", "ok", "ok", "ok"]
    assert records[2].intended_ns >= records[1].done_ns + 100 * MS


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("delay_ns", [0, DELAY_NS])
def test_open_loop_plays_later_turns_after_their_predecessors(
    workers: int, delay_ns: int, server: NullServer, tmp_path: Path
) -> None:
    starts_ns = [10 * MS * number for number in range(12)]
    requests = turns([["a", "b", "c"]] * 12, starts_ns=starts_ns, delay_ns=delay_ns)
    records, _, info = play(opened(tmp_path, requests), server.url, MODEL, workers=workers)
    assert [record.status for record in records] == ["ok"] * 36
    for number, conversation in enumerate(by_conversation(records, 3)):
        assert conversation[0].intended_ns == starts_ns[number]
        assert conversation[0].worker == number % workers
        check_turns(conversation, delay_ns)
    assert info.workers == workers


def test_failed_turn_fails_those_after_it_in_an_open_loop(tmp_path: Path) -> None:
    """Each scheduled request has a record."""
    prompts = [["good 1", "reset_in_the_stream", "good 2", "good 3"], ["good 4", "too_few_tokens", "good 5"]]
    requests = turns(prompts, starts_ns=[0, 0], delay_ns=DELAY_NS)
    with Adversary() as adversary:
        records, received, _ = play(opened(tmp_path, requests), adversary.url, "m", workers=1)
        assert not {"good 2", "good 3"} & adversary.answers.keys()
    assert [record.status for record in records] == ["ok", "reset", "reset", "reset", "ok", "mismatch", "ok"]
    for before, skipped in itertools.pairwise(records[1:4]):
        assert skipped.error == "predecessor failed"
        assert (skipped.sent_ns, skipped.first_ns, skipped.http_status, skipped.events) == (
            None,
            None,
            None,
            0,
        )
        assert skipped.done_ns == skipped.intended_ns == before.done_ns + DELAY_NS
    assert received.tokens.sum() == sum(record.output_tokens or 0 for record in records)


def test_turn_that_times_out_ends_an_open_play(tmp_path: Path) -> None:
    requests = turns([["stall_before_the_answer", "good 1"], ["good 2"]], starts_ns=[0, 0])
    with Adversary() as adversary:
        records, _, _ = play(opened(tmp_path, requests), adversary.url, "m", workers=2, timeout_s=0.5)
    assert [record.status for record in records] == ["timeout", "reset", "ok"]


@pytest.mark.parametrize("workers", [1, 2])
def test_slots_of_all_workers_start_evenly_spread(workers: int, server: NullServer, tmp_path: Path) -> None:
    path = closed(tmp_path, turns([["a"]] * 2_000), 5, start_over_ns=500 * MS)
    records, _, _ = play(path, server.url, MODEL, workers=workers, seconds=0.45)
    intended_ns = sorted(record.intended_ns for record in records)
    assert {100 * MS * slot for slot in range(5)} <= set(intended_ns)
    assert intended_ns.count(0) == 1
    ends_ns = sorted(record.done_ns for record in records)
    for at_ns in intended_ns:
        started = sum(start_ns < at_ns for start_ns in intended_ns)
        ended = sum(end_ns < at_ns for end_ns in ends_ns)
        assert started - ended <= 1 + at_ns // (100 * MS)
    assert {record.status for record in records} == {"ok"}


def test_slots_that_start_after_the_list_is_done_find_nothing(server: NullServer, tmp_path: Path) -> None:
    path = closed(tmp_path, turns([["a"]] * 4), 4, start_over_ns=60 * 10**9)
    records, _, info = play(path, server.url, MODEL, workers=1)
    assert [record.index for record in records] == [0, 1, 2, 3]
    assert info.played_s < 60
