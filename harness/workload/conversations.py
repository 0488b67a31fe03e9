"""Conversations turn by turn: each prompt holds all before it, with answers that were written ahead.

They are never the answers of the server that is measured: all systems get the same bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from harness.workload.checks import ScheduleError
from harness.workload.declared import ConversationPrompts, TracePrompts
from harness.workload.lengths import draw
from harness.workload.prompts import shuffled_rounds
from harness.workload.recorded import RecordedConversation
from harness.workload.streams import exactly, to_ns

CHARACTERS_PER_TOKEN = 4
"""The usual estimate for English and code; recorded conversations come without token counts."""


class Turn(NamedTuple):
    """A request: its prompt, the wait after the turn before it ended, the recorded output length if any."""

    prompt: str | list[int]
    delay_ns: int = 0
    output_tokens: int | None = None


Conversation = Sequence[Turn]


def written_conversations(
    texts: Sequence[str], declared: ConversationPrompts, name: str, seed: int
) -> Iterator[Conversation]:
    """Endless conversations whose questions, and the answers to all but the last, are texts of the set.

    Each starts with a serial line of its own (see `timed_prompts`): only turns of one conversation share a
    prefix. Numbers of turns from the stream "turns".
    """
    rounds = shuffled_rounds(texts, seed)
    for serial, turns in enumerate(draw(declared.turns, seed, "turns")):
        text = _serial_line(serial, name, seed)
        conversation = []
        for place in range(turns):
            text += f"User: {next(rounds)}\n\nAssistant:"
            conversation.append(Turn(text, to_ns(declared.delay_s) if place else 0))
            text += f" {next(rounds)}\n\n"
        yield conversation


def estimated_tokens(text: str) -> int:
    return max(1, len(text) // CHARACTERS_PER_TOKEN)


def replayed_conversations(
    recorded: Sequence[RecordedConversation], declared: TracePrompts, name: str, seed: int
) -> tuple[Iterator[Conversation], int]:
    """Endless recorded conversations in their order, each behind a serial line of its own; and how many turns
    of one round are left out.

    A turn's output length is estimated as the characters of the recorded answer / 4. A conversation ends
    before its first turn whose prompt and output, estimated so, are more than `max_total_tokens`. Waits are
    divided by `speed`. Raises ScheduleError when no turn is left.
    """

    def shown(serial: int, conversation: RecordedConversation) -> Conversation:
        return _replayed(_serial_line(serial, name, seed), conversation, declared)

    kept = sum(len(shown(serial, conversation)) for serial, conversation in enumerate(recorded))
    if kept == 0:
        raise ScheduleError(
            f"max_total_tokens {declared.max_total_tokens} leaves no turn of trace {declared.trace}"
        )
    endless = (shown(serial, conversation) for serial, conversation in enumerate(itertools.cycle(recorded)))
    return filter(None, endless), sum(len(conversation.turns) for conversation in recorded) - kept


def _replayed(text: str, conversation: RecordedConversation, declared: TracePrompts) -> Conversation:
    turns = []
    for turn in conversation.turns:
        text += turn.asked
        output = estimated_tokens(turn.answer)
        limit = declared.max_total_tokens
        if limit is not None and estimated_tokens(text) + output > limit:
            break
        turns.append(Turn(text, round(turn.delay_ns / exactly(declared.speed)), output))
        text += turn.answer
    return turns


def _serial_line(serial: int, name: str, seed: int) -> str:
    return f"Conversation {serial:04d} of {name}-{seed}.\n\n"
