"""Conversations grow turn by turn, share nothing with each other, and end where they should."""

import itertools

import pytest

from harness.workload.checks import ScheduleError
from harness.workload.conversations import replayed_conversations, written_conversations
from harness.workload.declared import ConversationPrompts, TracePrompts, UniformLength
from harness.workload.recorded import RecordedConversation, RecordedTurn, agentic_conversations
from tests.harness.workload.made_traces import COPIES, needs_copies

TEXTS = ("One?", "Two?", "Three?", "Four?", "Five?")
TURNS = ConversationPrompts(turns=UniformLength(low=1, high=4), delay_s=0.25)
RECORDED = (
    RecordedConversation(
        "a", (RecordedTurn("ask", " " * 40, 0), RecordedTurn("again", "yes", 3_000_000_001))
    ),
    RecordedConversation("b", (RecordedTurn("x" * 400, "no", 0),)),
)


def test_written_conversations_grow() -> None:
    made = list(itertools.islice(written_conversations(TEXTS, TURNS, "c", 1), 60))
    assert {len(turns) for turns in made} == {1, 2, 3, 4}
    for serial, turns in enumerate(made):
        assert turns[0].prompt.startswith(f"Conversation {serial:04d} of c-1.\n\nUser: ")
        assert [turn.delay_ns for turn in turns] == [0] + [250_000_000] * (len(turns) - 1)
        for earlier, later in itertools.pairwise(turns):
            assert later.prompt.startswith(earlier.prompt + " ")
        assert all(turn.prompt.endswith("\n\nAssistant:") for turn in turns)
        assert turns[-1].prompt.count("User: ") == len(turns)


def test_a_written_conversation_reads_as_one() -> None:
    declared = ConversationPrompts(turns=UniformLength(low=2, high=2))
    (_, second) = next(written_conversations(("Same.",), declared, "c", 1))
    assert second.prompt == (
        "Conversation 0000 of c-1.\n\nUser: Same.\n\nAssistant: Same.\n\nUser: Same.\n\nAssistant:"
    )


def agentic(**changes) -> TracePrompts:
    return TracePrompts(trace="agentic_coding", **changes)


def test_recorded_conversations_go_round_behind_new_serials() -> None:
    conversations, left_out = replayed_conversations(RECORDED, agentic(speed=2), "c", 1)
    first, second, third = itertools.islice(conversations, 3)
    assert left_out == 0
    assert [turn.prompt for turn in first] == [
        "Conversation 0000 of c-1.\n\nask",
        "Conversation 0000 of c-1.\n\nask" + " " * 40 + "again",
    ]
    assert [turn.output_tokens for turn in first] == [10, 1]
    assert [turn.delay_ns for turn in first] == [0, 1_500_000_000]
    assert second[0].prompt == "Conversation 0001 of c-1.\n\n" + "x" * 400
    assert third[0].prompt == "Conversation 0002 of c-1.\n\nask"


def test_a_conversation_ends_before_a_turn_that_is_too_long() -> None:
    # 30 and 75 characters: 7 + 10 and 18 + 1 tokens; the other conversation has 106 + 1
    conversations, left_out = replayed_conversations(RECORDED, agentic(max_total_tokens=18), "c", 1)
    assert left_out == 2
    assert [len(turns) for turns in itertools.islice(conversations, 3)] == [1, 1, 1]
    _, left_out = replayed_conversations(RECORDED, agentic(max_total_tokens=19), "c", 1)
    assert left_out == 1


def test_a_limit_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(ScheduleError, match="max_total_tokens 5 leaves no turn of trace agentic_coding"):
        replayed_conversations(RECORDED, agentic(max_total_tokens=5), "c", 1)


@needs_copies
def test_the_agentic_trace() -> None:
    recorded = agentic_conversations(COPIES / "agentic_coding_2.5h.jsonl")
    assert len(recorded) == 20
    conversations, left_out = replayed_conversations(recorded, agentic(), "c", 1)
    assert left_out == 0
    made = list(itertools.islice(conversations, 20))
    assert sum(map(len, made)) == 1_007
    for turns in made:
        assert all(later.prompt.startswith(earlier.prompt) for earlier, later in itertools.pairwise(turns))
    assert made[0][1].delay_ns == 368_330_000
    assert "Tool: <returncode>0</returncode>" in made[0][1].prompt
