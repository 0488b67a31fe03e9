"""What the public traces hold, read with whole-number arithmetic. Errors name file, line and value."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from harness.workload.checks import ScheduleError
from harness.workload.streams import NS_PER_S

BLOCK_TOKENS = 512
"""Tokens of a prefix block of the Mooncake traces."""
LAST_STAMP_NS = 3 * NS_PER_S
AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
_AZURE_LINE = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d):(\d\d):(\d\d)\.(\d{7}),([1-9]\d*),([1-9]\d*)")

Count = Annotated[int, Field(ge=1)]


class Row(NamedTuple):
    """A request of a trace: ns after the first one, lengths in tokens, and the ids of its prompt's blocks of
    BLOCK_TOKENS (the last may be partial) where the trace has them."""

    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


class RecordedTurn(NamedTuple):
    """A request to the model inside a conversation: the text new since its last answer, the answer, and the
    ns between the end of that last answer and this request (0 in the first turn)."""

    asked: str
    answer: str
    delay_ns: int


class RecordedConversation(NamedTuple):
    id: str
    turns: tuple[RecordedTurn, ...]


def azure_rows(path: Path) -> tuple[Row, ...]:
    """Rows of an Azure LLM inference trace of 2023: a CSV of time (in 100 ns), prompt and output tokens."""
    lines = path.read_text(encoding="utf-8").splitlines()
    if not lines or lines[0] != AZURE_HEADER:
        raise ScheduleError(f"{path}, line 1: {lines[0] if lines else ''!r} must be {AZURE_HEADER!r}")
    rows = []
    for number, line in enumerate(lines[1:], start=2):
        found = _AZURE_LINE.fullmatch(line)
        try:
            if found is None:
                raise ValueError("must be a time with seven decimals and two numbers above 0")
            day, hours, minutes, seconds, ticks, prompt, output = found.groups()
            whole_s = 86_400 * date.fromisoformat(day).toordinal()
            whole_s += 3_600 * int(hours) + 60 * int(minutes) + int(seconds)
            rows.append(Row(whole_s * NS_PER_S + int(ticks) * 100, int(prompt), int(output)))
        except ValueError as error:
            raise ScheduleError(f"{path}, line {number}: {line!r}: {error}") from None
    return _from_first(path, rows, first_line=2)


class _MooncakeLine(BaseModel):
    timestamp: Annotated[int, Field(ge=0)]
    input_length: Count
    output_length: Count
    hash_ids: tuple[Annotated[int, Field(ge=0)], ...]


def mooncake_rows(path: Path) -> tuple[Row, ...]:
    """Rows of a Mooncake FAST'25 trace: JSON lines with milliseconds, lengths, and ids of prefix blocks."""
    rows = []
    for number, line in _parsed_lines(path, TypeAdapter(_MooncakeLine)):
        blocks = -(-line.input_length // BLOCK_TOKENS)
        if len(line.hash_ids) != blocks:
            raise ScheduleError(
                f"{path}, line {number}: {len(line.hash_ids)} hash_ids, but an input_length of "
                f"{line.input_length} has {blocks} blocks of {BLOCK_TOKENS}"
            )
        rows.append(Row(line.timestamp * 10**6, line.input_length, line.output_length, line.hash_ids))
    return _from_first(path, rows, first_line=1)


def spread_mooncake_rows(path: Path) -> tuple[Row, ...]:
    """`mooncake_rows` of the conversation trace, whose times are stamps about 3 s apart with some ten rows
    each.

    Replayed literally, they would arrive as one burst every 3 s. The rows of a stamp are spread evenly over
    the time to the next stamp (3 s after the last one), the first at the stamp itself.
    """
    rows = mooncake_rows(path)
    stamps = [list(group) for _, group in itertools.groupby(rows, key=lambda row: row.arrival_ns)]
    ends_ns = [group[0].arrival_ns for group in stamps[1:]]
    ends_ns += [group[0].arrival_ns + LAST_STAMP_NS for group in stamps[-1:]]
    return tuple(
        row._replace(arrival_ns=row.arrival_ns + place * (end_ns - row.arrival_ns) // len(group))
        for group, end_ns in zip(stamps, ends_ns, strict=True)
        for place, row in enumerate(group)
    )


class _Turn(BaseModel):
    conversation_id: str
    turn: int


class _UserTurn(_Turn):
    role: Literal["user"]
    system: str
    tools: list[dict[str, Any]]
    content: str


class _Function(BaseModel):
    name: str
    arguments: str


class _ToolCall(BaseModel):
    function: _Function


class _AssistantTurn(_Turn):
    role: Literal["assistant"]
    reasoning_content: str
    tool_calls: list[_ToolCall]


class _ToolResult(BaseModel):
    content: str


class _ToolTurn(_Turn):
    role: Literal["tool"]
    tool_results: list[_ToolResult]
    delay_seconds: Annotated[Decimal, Field(ge=0)]


_AGENTIC_LINE = TypeAdapter(Annotated[_UserTurn | _AssistantTurn | _ToolTurn, Field(discriminator="role")])


def agentic_conversations(path: Path) -> tuple[RecordedConversation, ...]:
    """Conversations of the agentic coding trace as plain text: "System:", "Tools:", "User:", "Assistant:" and
    "Tool:", each with its text, an empty line between them; an answer is its reasoning and its calls."""
    conversations: dict[str, list[RecordedTurn]] = {}
    pending: dict[str, tuple[str, int]] = {}
    last: dict[str, int] = {}
    for number, line in _parsed_lines(path, _AGENTIC_LINE):
        id, role = line.conversation_id, "assistant" if line.turn % 2 == 0 else "tool"
        if line.turn != last.get(id, 0) + 1 or line.role != ("user" if line.turn == 1 else role):
            raise ScheduleError(
                f"{path}, line {number}: {line.role} turn {line.turn} of {id} is out of order"
            )
        last[id] = line.turn
        match line:
            case _UserTurn():
                tools = json.dumps(line.tools, ensure_ascii=False)
                text = f"System: {line.system}\n\nTools: {tools}\n\nUser: {line.content}\n\nAssistant:"
                pending[id] = text, 0
            case _ToolTurn():
                results = "\n\n".join(f"Tool: {result.content}" for result in line.tool_results)
                delay_ns = int((line.delay_seconds * NS_PER_S).to_integral_value())
                pending[id] = f"\n\n{results}\n\nAssistant:", delay_ns
            case _AssistantTurn():
                calls = [f"{call.function.name}({call.function.arguments})" for call in line.tool_calls]
                asked, delay_ns = pending.pop(id)
                answer = " " + "\n".join([line.reasoning_content, *calls])
                conversations.setdefault(id, []).append(RecordedTurn(asked, answer, delay_ns))
    if not conversations:
        raise ScheduleError(f"{path} holds no conversations")
    return tuple(RecordedConversation(id, tuple(turns)) for id, turns in conversations.items())


def _parsed_lines(path: Path, kind: TypeAdapter) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            yield number, kind.validate_json(line)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise ScheduleError(
                f"{path}, line {number}: {where} {str(first['input'])[:80]!r}: {first['msg']}"
            ) from None


def _from_first(path: Path, rows: Sequence[Row], first_line: int) -> tuple[Row, ...]:
    if not rows:
        raise ScheduleError(f"{path} holds no requests")
    for number, (earlier, later) in enumerate(itertools.pairwise(rows), start=first_line + 1):
        if later.arrival_ns < earlier.arrival_ns:
            raise ScheduleError(f"{path}, line {number}: arrives before the request of the line above")
    first_ns = rows[0].arrival_ns
    return tuple(row._replace(arrival_ns=row.arrival_ns - first_ns) for row in rows)
