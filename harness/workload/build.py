"""From a declared workload to its schedule, and to the short texts that name it in results."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.workload.arrivals import arrivals_ns, mean_rate_rps, replayed
from harness.workload.checks import MAX_DURATION_S, MAX_TOKENS, ScheduleError, check_int, check_real
from harness.workload.conversations import (
    Conversation,
    Turn,
    replayed_conversations,
    written_conversations,
)
from harness.workload.declared import (
    BurstsLoad,
    ClosedLoad,
    ConstantLoad,
    ConversationPrompts,
    EnglishPrompts,
    FixedLength,
    GammaLoad,
    Lengths,
    Load,
    LognormalLength,
    PoissonLoad,
    PrefixGroupPrompts,
    Prompts,
    StepsLoad,
    TokenIdPrompts,
    TraceLength,
    TraceLoad,
    TraceName,
    TracePrompts,
    UniformLength,
)
from harness.workload.lengths import draw, longest, shortest
from harness.workload.prompts import load_prompts, timed_prompts
from harness.workload.recorded import Row
from harness.workload.schedule import Schedule, ScheduledRequest, checked, timed
from harness.workload.streams import NS_PER_S, to_ns
from harness.workload.token_ids import IdTexts, block_prompts, different_prompts, prefix_group_prompts
from harness.workload.traces import read_trace

AGENTIC = "agentic_coding"


def build(
    name: str,
    seed: int,
    load: Load,
    prompts: Prompts,
    output: Lengths,
    duration_s: float | None = None,
    traces: Path | None = None,
) -> Schedule:
    """The schedule of a workload: equal arguments give equal bytes on every machine.

    Open loops have every arrival before `duration_s` (closed loops take none); an arrival starts a
    conversation where prompts are conversations, whose last one ends with the list in a closed loop. Each use
    of randomness has its own stream: "arrivals", "lengths" (of outputs), "prompts", "prompt lengths",
    "groups", "turns", "base ids". Traces lie in the folder `traces`, or the default one. Raises ScheduleError
    for values that do not fit together, a trace that is not there or has too few rows.
    """
    duration_ns = None if isinstance(load, ClosedLoad) else _duration_ns(duration_s)
    trace = _trace_of(load, prompts)
    _check_lengths(prompts, output, trace)
    rows, left_out = None, 0
    if trace is not None and trace != AGENTIC:
        rows, left_out = _short_enough(_rows(trace, load, duration_ns, traces), prompts, output)
    due = _due_times(load, seed, duration_ns, rows)
    if isinstance(prompts, ConversationPrompts):
        conversations = written_conversations(_english(), prompts, name, seed)
    elif isinstance(prompts, TracePrompts) and prompts.trace == AGENTIC:
        conversations, left_out = replayed_conversations(read_trace(AGENTIC, traces), prompts, name, seed)
    else:
        conversations = _single_turns(prompts, name, seed, rows, len(due))
    closed = isinstance(load, ClosedLoad)
    schedule = Schedule(
        name,
        "closed" if closed else "open",
        concurrency_of(load),
        len(due) * NS_PER_S / duration_ns if isinstance(load, TraceLoad) else rate_of(load),
        duration_ns,
        seed,
        tuple(_requests(load, seed, due, conversations, output)),
        start_over_ns=to_ns(load.start_over_s) if closed else 0,
        left_out=left_out,
    )
    return checked(schedule)


def concurrency_of(load: Load) -> int | None:
    """Requests in flight of a closed loop; None for an open one."""
    return load.concurrency if isinstance(load, ClosedLoad) else None


def rate_of(load: Load) -> float | None:
    """Mean requests/s offered by an open loop; None for a closed one, and for a trace (see its schedule)."""
    return None if isinstance(load, ClosedLoad | TraceLoad) else mean_rate_rps(load)


def describe_load(load: Load) -> str:
    """A load in a few words: "closed, 8 in flight"; "gamma arrivals, 10 requests/s, CV 2"."""
    match load:
        case ClosedLoad():
            ramp = f", started over {load.start_over_s:g} s" if load.start_over_s else ""
            return f"closed, {load.concurrency} in flight{ramp}"
        case PoissonLoad():
            return f"Poisson arrivals, {load.rate_rps:g} requests/s"
        case GammaLoad():
            return f"gamma arrivals, {load.rate_rps:g} requests/s, CV {load.cv:g}"
        case ConstantLoad():
            return f"constant gaps, {load.rate_rps:g} requests/s"
        case BurstsLoad():
            return f"bursts of {load.size}, {load.rate_rps:g} requests/s"
        case StepsLoad():
            rates = ", ".join(f"{rate:g}" for rate in load.rates_rps)
            return f"Poisson steps, {rates} requests/s, {load.step_s:g} s each"
        case TraceLoad():
            start = f" from {load.start_s:g} s" if load.start_s else ""
            spread = ", 3 s stamps spread evenly" if load.trace == "mooncake_conversation" else ""
            return f"arrivals of {load.trace}{start} x{load.speed:g}{spread}"


def describe_workload(prompts: Prompts, output: Lengths, left_out: int = 0) -> str:
    """What is asked, in a few words: "english"; "token_ids 64-192 to 32-96"; "azure_conv up to 2048 tokens,
    838 left out" (`left_out` of its schedule)."""
    match prompts:
        case EnglishPrompts():
            return "english"
        case TokenIdPrompts():
            return f"token_ids {_short(prompts.length)} to {_short(output)}"
        case PrefixGroupPrompts():
            asked = f"{prompts.groups}x{prompts.prefix_tokens}+{_short(prompts.length)}"
            return f"prefix_groups {asked} to {_short(output)}"
        case ConversationPrompts():
            wait = f" {prompts.delay_s:g} s apart" if prompts.delay_s else ""
            return f"conversations of {_short(prompts.turns)} turns{wait} to {_short(output)}"
        case TracePrompts():
            speed = f" x{prompts.speed:g}" if prompts.speed != 1 else ""
            to = "" if isinstance(output, TraceLength) else f" to {_short(output)}"
            limit = f" up to {prompts.max_total_tokens} tokens" if prompts.max_total_tokens else ""
            missing = f", {left_out} left out" if left_out else ""
            return f"{prompts.trace}{speed}{to}{limit}{missing}"


def _short(law: Lengths) -> str:
    match law:
        case FixedLength():
            return str(law.tokens)
        case UniformLength():
            return str(law.low) if law.low == law.high else f"{law.low}-{law.high}"
        case LognormalLength():
            return f"{law.low}-{law.high} (lognormal {law.median}, {law.sigma:g})"
        case TraceLength():
            return "trace"


def _english() -> list[str]:
    return [prompt.text for prompt in load_prompts()]


def _duration_ns(duration_s: float | None) -> int:
    check_real("duration_s of an open loop", duration_s, MAX_DURATION_S)
    return to_ns(duration_s)


def _trace_of(load: Load, prompts: Prompts) -> TraceName | None:
    named = [part.trace for part in (load, prompts) if isinstance(part, TraceLoad | TracePrompts)]
    if len(set(named)) > 1:
        raise ScheduleError(f"arrivals of trace {named[0]} cannot ask for the prompts of trace {named[1]}")
    return named[0] if named else None


def _check_lengths(prompts: Prompts, output: Lengths, trace: TraceName | None) -> None:
    laws = [output, prompts.length] if isinstance(prompts, TokenIdPrompts | PrefixGroupPrompts) else [output]
    if not any(isinstance(law, TraceLength) for law in laws):
        return
    if trace is None:
        raise ScheduleError("lengths of law 'trace' need a load or prompts that name a trace")
    if isinstance(prompts, ConversationPrompts):
        raise ScheduleError("prompts 'conversations' cannot have output lengths of law 'trace'")


def _rows(trace: TraceName, load: Load, duration_ns: int | None, traces: Path | None) -> Sequence[Row]:
    recorded = read_trace(trace, traces)
    if not isinstance(load, TraceLoad):
        return recorded
    return replayed(recorded, load, duration_ns)


def _short_enough(rows: Sequence[Row], prompts: Prompts, output: Lengths) -> tuple[Sequence[Row], int]:
    """The rows that fit into `max_total_tokens`, and how many do not."""
    if not isinstance(prompts, TracePrompts) or prompts.max_total_tokens is None:
        return rows, 0
    drawn = None if isinstance(output, TraceLength) else longest(output)
    kept = [
        row for row in rows if row.prompt_tokens + (drawn or row.output_tokens) <= prompts.max_total_tokens
    ]
    return kept, len(rows) - len(kept)


def _due_times(
    load: Load, seed: int, duration_ns: int | None, rows: Sequence[Row] | None
) -> Sequence[int | None]:
    if isinstance(load, ClosedLoad):
        return [None] * load.requests
    if not isinstance(load, TraceLoad):
        return arrivals_ns(load, seed, duration_ns)
    if not rows:
        raise ScheduleError(
            f"no request of trace {load.trace} short enough arrives from start_s {load.start_s:g} on, "
            f"at speed {load.speed:g}, within {duration_ns / NS_PER_S:g} s"
        )
    return [row.arrival_ns for row in rows]


def _single_turns(
    prompts: Prompts, name: str, seed: int, rows: Sequence[Row] | None, count: int
) -> Iterator[Conversation]:
    if rows is not None and len(rows) < count:
        raise ScheduleError(
            f"{count} requests are more than the {len(rows)} rows of the trace that can be used"
        )
    outputs = itertools.repeat(None) if rows is None else (row.output_tokens for row in rows)
    texts = _texts(prompts, name, seed, rows)
    return ((Turn(text, output_tokens=output),) for text, output in zip(texts, outputs, strict=False))


def _texts(
    prompts: Prompts, name: str, seed: int, rows: Sequence[Row] | None
) -> Iterator[str] | Iterator[list[int]]:
    if isinstance(prompts, EnglishPrompts):
        return timed_prompts(_english(), name=name, seed=seed)
    texts = IdTexts(prompts, name, seed)
    if isinstance(prompts, TracePrompts):
        if any(row.blocks for row in rows):
            return block_prompts(texts, rows)
        return different_prompts(texts, seed, (row.prompt_tokens for row in rows))
    if isinstance(prompts.length, TraceLength):
        lengths = (row.prompt_tokens for row in rows)
    else:
        check_int("length (shortest)", shortest(prompts.length), texts.serial_ids, MAX_TOKENS)
        lengths = draw(prompts.length, seed, "prompt lengths")
    if isinstance(prompts, TokenIdPrompts):
        return different_prompts(texts, seed, lengths)
    check_int("prefix_tokens", prompts.prefix_tokens, texts.serial_ids, MAX_TOKENS)
    return prefix_group_prompts(texts, seed, prompts, lengths)


def _requests(
    load: Load,
    seed: int,
    due: Sequence[int | None],
    conversations: Iterator[Conversation],
    output: Lengths,
) -> list[ScheduledRequest]:
    """The turns of a conversation follow each other; a closed loop's list ends at its number of requests."""
    lengths = None if isinstance(output, TraceLength) else draw(output, seed, "lengths")
    turns = (
        (first_due, place, turn)
        for first_due, conversation in zip(due, conversations, strict=False)
        for place, turn in enumerate(conversation)
    )
    requests: list[ScheduledRequest] = []
    for first_due, place, turn in itertools.islice(
        turns, load.requests if isinstance(load, ClosedLoad) else None
    ):
        tokens = turn.output_tokens if lengths is None else next(lengths)
        after = len(requests) - 1 if place else None
        due_ns = None if place else first_due
        requests.append(timed(len(requests), due_ns, turn.prompt, tokens, after, turn.delay_ns))
    started = sum(request.after is None for request in requests)
    if isinstance(load, ClosedLoad) and started < load.concurrency:
        raise ScheduleError(
            f"requests {load.requests} make {started} conversations, "
            f"fewer than concurrency {load.concurrency}"
        )
    return requests
