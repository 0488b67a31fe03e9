"""The parsers of traces: exact times, and errors that name file, line and value."""

import json
from pathlib import Path

import pytest

from harness.workload.checks import ScheduleError
from harness.workload.recorded import (
    RecordedTurn,
    Row,
    agentic_conversations,
    azure_rows,
    mooncake_rows,
    spread_mooncake_rows,
)
from tests.harness.workload.made_traces import (
    AGENTIC,
    AZURE,
    COPIES,
    MOONCAKE,
    agentic,
    json_lines,
    mooncake,
    needs_copies,
)

MS = 10**6


def file(tmp_path: Path, content: str) -> Path:
    path = tmp_path / "trace"
    path.write_bytes(content.encode())
    return path


def test_azure_times_are_exact_over_midnight(tmp_path: Path) -> None:
    assert azure_rows(file(tmp_path, AZURE)) == (
        Row(0, 30, 4),
        Row(100, 7, 1),
        Row(2_000 * MS, 120, 9),
        Row(3_999_999_900, 2, 70),
    )


def test_mooncake_rows_are_as_recorded(tmp_path: Path) -> None:
    rows = mooncake_rows(file(tmp_path, MOONCAKE))
    assert [row.arrival_ns // MS for row in rows] == [0, 0, 0, 3_000, 3_000, 5_999]
    assert rows[1] == Row(0, 1_030, 6, (0, 1, 3))


def test_rows_of_a_stamp_are_spread_until_the_next(tmp_path: Path) -> None:
    rows = spread_mooncake_rows(file(tmp_path, MOONCAKE))
    due = [row.arrival_ns for row in rows]
    assert due == [0, 1_000 * MS, 2_000 * MS, 3_000 * MS, 4_499_500_000, 5_999 * MS]
    assert [row.blocks for row in rows] == [row.blocks for row in mooncake_rows(tmp_path / "trace")]


def test_rows_of_the_last_stamp_take_three_seconds(tmp_path: Path) -> None:
    content = mooncake(*[(7, 10, 1, [place]) for place in range(4)])
    rows = spread_mooncake_rows(file(tmp_path, content))
    assert [row.arrival_ns for row in rows] == [0, 750 * MS, 1_500 * MS, 2_250 * MS]


def test_agentic_conversations_become_plain_text(tmp_path: Path) -> None:
    first, second = agentic_conversations(file(tmp_path, AGENTIC))
    assert (first.id, len(first.turns), len(second.turns)) == ("first", 3, 2)
    start = 'System: Be brief.\n\nTools: [{"name": "bash"}]\n\nUser: Fix the ä.\n\nAssistant:'
    assert first.turns[0] == RecordedTurn(start, ' Look around first.\nbash({"command": "ls"})', 0)
    assert first.turns[1].asked == "\n\nTool: result 1\n\nAssistant:"
    assert [turn.delay_ns for turn in first.turns] == [0, 368_331_000, 2_500_000_000]


def edited(line: int, **changes) -> str:
    lines = [json.loads(text) for text in AGENTIC.splitlines()]
    lines[line] |= changes
    return json_lines(lines)


@pytest.mark.parametrize(
    ("parse", "content", "named"),
    [
        (azure_rows, "", "line 1: '' must be 'TIMESTAMP"),
        (azure_rows, "TIME,A,B\n", "line 1: 'TIME,A,B' must be"),
        (azure_rows, AZURE.split("\r\n")[0], "holds no requests"),
        (
            azure_rows,
            AZURE.replace("120,9", "-120,9"),
            "line 4: '2023-11-17 00:00:01.9000000,-120,9': must be",
        ),
        (azure_rows, AZURE.replace("59.9000001", "59.900"), "line 3"),
        (azure_rows, AZURE.replace("11-17", "13-17"), "line 4"),
        (azure_rows, AZURE.replace("11-16", "11-18"), "line 4: arrives before"),
        (azure_rows, AZURE.replace("120,9", "0,9"), "line 4"),
        (azure_rows, AZURE.replace("120,9", "120,0"), "line 4"),
        (mooncake_rows, "", "holds no requests"),
        (mooncake_rows, "[]\n", "line 1"),
        (mooncake_rows, MOONCAKE + "{", "line 7"),
        (mooncake_rows, mooncake((0, 512, 1, [1]), (5, 0, 1, [])), "line 2: input_length '0'"),
        (mooncake_rows, mooncake((0, 512, 0, [1])), "output_length '0'"),
        (mooncake_rows, mooncake((0, 512, 1, [-1])), "hash_ids.0 '-1'"),
        (mooncake_rows, mooncake((0, 513, 1, [1])), "line 1: 1 hash_ids, but an input_length of 513 has 2"),
        (mooncake_rows, mooncake((5, 9, 1, [1]), (4, 9, 1, [1])), "line 2: arrives before"),
        (agentic_conversations, "", "holds no conversations"),
        (agentic_conversations, edited(1, turn=3), "line 2: assistant turn 3 of first is out of order"),
        (agentic_conversations, edited(2, turn=2), "line 3: tool turn 2 of first"),
        (agentic_conversations, edited(2, delay_seconds=-1.5), "delay_seconds '-1.5'"),
        (agentic_conversations, edited(2, role="robot"), "line 3"),
        (agentic_conversations, json_lines(agentic("a", ["x"], [])[1:]), "line 1: assistant turn 2 of a"),
    ],
)
def test_damaged_traces_are_refused(parse, content: str, named: str, tmp_path: Path) -> None:
    path = file(tmp_path, content)
    with pytest.raises(ScheduleError) as caught:
        parse(path)
    assert named in str(caught.value)
    assert str(path) in str(caught.value)


@needs_copies
@pytest.mark.parametrize(
    ("name", "parse", "count", "seconds"),
    [
        ("azure_llm_2023_code.csv", azure_rows, 8_819, 3_436),
        ("azure_llm_2023_conv.csv", azure_rows, 19_366, 3_502),
        ("mooncake_fast25_conversation.jsonl", mooncake_rows, 12_031, 3_537),
        ("mooncake_fast25_synthetic.jsonl", mooncake_rows, 3_993, 1_022),
    ],
)
def test_the_public_traces(name: str, parse, count: int, seconds: int) -> None:
    rows = parse(COPIES / name)
    assert len(rows) == count
    assert round(rows[-1].arrival_ns / 10**9) == seconds


@needs_copies
def test_the_conversation_trace_has_no_bursts_once_spread() -> None:
    rows = spread_mooncake_rows(COPIES / "mooncake_fast25_conversation.jsonl")
    due = [row.arrival_ns for row in rows]
    assert due == sorted(due)
    assert len(set(due)) == len(due) == 12_031
