"""Declared workloads become schedules: pinned hashes, exact lengths, texts that name them, refusals."""

import itertools
from collections import Counter
from pathlib import Path

import pytest

from harness.workload.arrivals import replayed
from harness.workload.build import build, concurrency_of, describe_load, describe_workload, rate_of
from harness.workload.checks import ScheduleError
from harness.workload.declared import (
    BurstsLoad,
    ClosedLoad,
    ConstantLoad,
    ConversationPrompts,
    EnglishPrompts,
    FixedLength,
    GammaLoad,
    LognormalLength,
    PoissonLoad,
    PrefixGroupPrompts,
    StepsLoad,
    TokenIdPrompts,
    TraceLength,
    TraceLoad,
    TracePrompts,
    UniformLength,
)
from harness.workload.schedule import Schedule, read, write
from harness.workload.traces import read_trace
from tests.harness.workload.made_traces import COPIES, needs_copies

SPAN = UniformLength(low=8, high=40)
FIXED = FixedLength(tokens=16)
LOGNORMAL = LognormalLength(median=40, sigma=0.8, low=10, high=200)
CLOSED = ClosedLoad(concurrency=3, requests=24)
POISSON = PoissonLoad(rate_rps=2.5)
ENGLISH = EnglishPrompts()
IDS = TokenIdPrompts(length=SPAN)
GROUPS = PrefixGroupPrompts(groups=3, prefix_tokens=64, length=SPAN)
TALK = ConversationPrompts(turns=UniformLength(low=1, high=4), delay_s=0.5)
AGENTIC = TracePrompts(trace="agentic_coding", speed=2)

# (load, prompts, output, SHA-256 of the schedule "golden", seed 7, 20 s). The hashes are the promise that a
# seed means the same load everywhere and always. They are the same on Python 3.11 and 3.12.
GOLDEN = {
    "closed": (CLOSED, ENGLISH, SPAN, "4d27fe3fe1d0e8ee3214f5d288cdede9f044e70c607c14a2ec17daf84bba6b3a"),
    "ramp": (
        ClosedLoad(concurrency=3, requests=24, start_over_s=1.5),
        ENGLISH,
        FIXED,
        "1be15e429044275fa0f7e639e1e6e58151b2ff4c4e053474653fcd5078e58d52",
    ),
    "poisson": (POISSON, ENGLISH, SPAN, "f30882ffa1a859248b6d025052a63f6d6f379e88bb6771cb2b9524e65a789a48"),
    "gamma bursty": (
        GammaLoad(rate_rps=2.5, cv=2.5),
        ENGLISH,
        SPAN,
        "63062503c9788a9c00759db2f9aabbd2fac26d7944278f22ddd9ca3c9fe1de81",
    ),
    "gamma smooth": (
        GammaLoad(rate_rps=2.5, cv=0.5),
        ENGLISH,
        SPAN,
        "dfe07c6560e653554c34acb13e36013f33c63612189880efe2846a477275c025",
    ),
    "constant": (
        ConstantLoad(rate_rps=0.7),
        ENGLISH,
        SPAN,
        "0361bd3ab00becb955937215793d7fa2ff5c8d3276c688f96ec158bc33c286ef",
    ),
    "bursts": (
        BurstsLoad(rate_rps=3, size=4),
        ENGLISH,
        SPAN,
        "f3eaaac11133b957eb4becfbede4fe28f90f674535b3e94e9f6164d5253b396b",
    ),
    "steps": (
        StepsLoad(rates_rps=(1, 4, 2), step_s=5),
        ENGLISH,
        SPAN,
        "7d12c8b99cdde367a374ad8d222f37721d7667e0f78016d628de71f00a377638",
    ),
    "lognormal": (
        CLOSED,
        TokenIdPrompts(length=LOGNORMAL),
        LOGNORMAL,
        "4b4a3f6aef0de07665227612249199d2595c3101f325acca0324f3050fa0ede1",
    ),
    "token ids": (CLOSED, IDS, SPAN, "06302d9c97dae3ea5c52bbcb99fb9511c7435ae09e41b4c1f9002380e24c4952"),
    "prefix groups": (
        CLOSED,
        GROUPS,
        SPAN,
        "a938f52bc5b0a392235c7bf6c46880092210b8594a6a52f27688469421f42445",
    ),
    "conversations": (CLOSED, TALK, SPAN, "61695c9948d73f5aded4cd594da8e0e159a67addcba53dbb4f2dd559dce172d5"),
    "open conversations": (
        ConstantLoad(rate_rps=0.5),
        TALK,
        SPAN,
        "d1e14e1e7fb34c7fdbbcaea0868a6207aed74cb5fc90cbd9d824e98303bca162",
    ),
    "azure": (
        TraceLoad(trace="azure_conv", speed=0.5),
        TracePrompts(trace="azure_conv", max_total_tokens=100),
        TraceLength(),
        "df2aafd1d7b7205dede3e9628d4a2173dde93dab312f0a041b1a90bde8372728",
    ),
    "mooncake": (
        TraceLoad(trace="mooncake_conversation", speed=3, start_s=1),
        TracePrompts(trace="mooncake_conversation"),
        TraceLength(),
        "53f8c97216f74301589d39f119d1e104a03324e5530badc0c0906ba93962f6eb",
    ),
    "agentic": (
        CLOSED,
        AGENTIC,
        TraceLength(),
        "18266653fb878e190cb4d2358a703615938eb5e2bc05b82f74b82ec59651bcbf",
    ),
}


def made(kind: str, traces: Path, name: str = "golden") -> Schedule:
    load, prompts, output, _ = GOLDEN[kind]
    return build(name, 7, load, prompts, output, 20, traces)


@pytest.mark.parametrize("kind", GOLDEN)
def test_golden_hash(kind: str, made_traces: Path, tmp_path: Path) -> None:
    assert write(made(kind, made_traces), tmp_path / "schedule.jsonl") == GOLDEN[kind][3]


@pytest.mark.parametrize("kind", GOLDEN)
def test_file_is_read_as_written(kind: str, made_traces: Path, tmp_path: Path) -> None:
    schedule, path = made(kind, made_traces), tmp_path / "schedule.jsonl.gz"
    sha256 = write(schedule, path)
    assert read(path) == (schedule, sha256)


@pytest.mark.parametrize("kind", GOLDEN)
def test_another_name_shares_no_prompt(kind: str, made_traces: Path) -> None:
    one, other = (made(kind, made_traces, name) for name in ("golden", "other"))
    starts = [{tuple(request.prompt[:40]) for request in schedule.requests} for schedule in (one, other)]
    assert not starts[0] & starts[1]


def test_a_closed_loop_needs_no_duration_and_starts_over_time() -> None:
    schedule = build("c", 1, ClosedLoad(concurrency=3, requests=24, start_over_s=1.5), ENGLISH, FIXED)
    assert (schedule.kind, schedule.concurrency, schedule.rate_rps, schedule.duration_ns) == (
        "closed",
        3,
        None,
        None,
    )
    assert schedule.start_over_ns == 1_500_000_000
    assert [request.max_tokens for request in schedule.requests] == [16] * 24
    assert all(r.ignore_eos and r.temperature == 0 and r.after is None for r in schedule.requests)


def test_an_open_loop_has_its_rate_and_duration() -> None:
    schedule = build("o", 1, ConstantLoad(rate_rps=2), ENGLISH, SPAN, 5)
    assert (schedule.kind, schedule.concurrency, schedule.rate_rps) == ("open", None, 2.0)
    assert schedule.duration_ns == 5 * 10**9
    assert [request.intended_ns for request in schedule.requests] == [
        place * 500_000_000 for place in range(10)
    ]


def test_streams_do_not_touch_each_other() -> None:
    """Neither lengths nor prompts move when the load changes, nor arrivals when lengths do."""
    base = build("s", 1, POISSON, IDS, SPAN, 20).requests
    gamma = build("s", 1, GammaLoad(rate_rps=2.5, cv=2), IDS, SPAN, 20).requests
    fixed = build("s", 1, POISSON, IDS, FIXED, 20).requests
    same = list(zip(base, gamma, strict=False))
    assert all((a.prompt, a.max_tokens) == (b.prompt, b.max_tokens) for a, b in same)
    assert any(a.intended_ns != b.intended_ns for a, b in same)
    assert [(r.prompt, r.intended_ns) for r in base] == [(r.prompt, r.intended_ns) for r in fixed]


def test_lengths_follow_their_laws() -> None:
    load = ClosedLoad(concurrency=1, requests=1_000)
    requests = build("l", 1, load, TokenIdPrompts(length=LOGNORMAL), SPAN).requests
    lengths = sorted(len(request.prompt) for request in requests)
    assert abs(lengths[500] - 40) < 5
    assert (lengths[0], lengths[-1]) == (10, 200)  # clamped: 4 % lie below, 2 % above
    assert {request.max_tokens for request in requests} == set(range(8, 41))


def test_a_file_of_token_ids_is_small(tmp_path: Path) -> None:
    load = ClosedLoad(concurrency=64, requests=5_000)
    schedule = build("s", 1, load, TokenIdPrompts(length=UniformLength(low=64, high=192)), SPAN)
    write(schedule, tmp_path / "s.jsonl.gz")
    assert (tmp_path / "s.jsonl.gz").stat().st_size < 80 * 5_000


def test_turns_of_a_closed_loop_follow_each_other() -> None:
    requests = build("t", 1, CLOSED, TALK, SPAN).requests
    assert len(requests) == 24
    for earlier, later in itertools.pairwise(requests):
        if later.after is None:
            assert later.delay_ns == 0
        else:
            assert (later.after, later.delay_ns) == (earlier.index, 500_000_000)
            assert later.prompt.startswith(earlier.prompt)
    assert any(request.after is not None for request in requests)


def test_arrivals_of_an_open_loop_start_conversations() -> None:
    requests = build("t", 1, ConstantLoad(rate_rps=0.5), TALK, SPAN, 20).requests
    firsts = [request for request in requests if request.after is None]
    assert [request.intended_ns for request in firsts] == [place * 2 * 10**9 for place in range(10)]
    assert len(requests) > 10
    assert all(request.intended_ns is None for request in requests if request.after is not None)


def test_rows_of_a_trace_are_asked_when_and_as_recorded(made_traces: Path) -> None:
    schedule = made("azure", made_traces)
    asked = [(r.intended_ns, len(r.prompt), r.max_tokens) for r in schedule.requests]
    assert asked == [(0, 30, 4), (200, 7, 1), (7_999_999_800, 2, 70)]
    assert schedule.left_out == 1
    assert schedule.rate_rps == 3 / 20


def test_the_limit_counts_the_longest_output_that_may_be_drawn(made_traces: Path) -> None:
    load = TraceLoad(trace="azure_conv")
    prompts = TracePrompts(trace="azure_conv", max_total_tokens=47)
    schedule = build("a", 1, load, prompts, SPAN, 20, made_traces)
    assert [len(request.prompt) for request in schedule.requests] == [7, 2]
    assert schedule.left_out == 2


def test_a_closed_loop_takes_the_rows_in_order(made_traces: Path) -> None:
    load = ClosedLoad(concurrency=1, requests=3)
    schedule = build("a", 1, load, TracePrompts(trace="azure_code"), TraceLength(), traces=made_traces)
    assert [(len(r.prompt), r.max_tokens) for r in schedule.requests] == [(30, 4), (7, 1), (120, 9)]


def test_other_prompts_can_arrive_as_in_a_trace(made_traces: Path) -> None:
    load = TraceLoad(trace="azure_conv")
    english = build("a", 1, load, ENGLISH, TraceLength(), 20, made_traces)
    assert [request.max_tokens for request in english.requests] == [4, 1, 9, 70]
    assert english.requests[3].prompt.startswith("Request 0003 of a-1.")
    ids = build("a", 1, load, TokenIdPrompts(length=TraceLength()), FIXED, 20, made_traces)
    assert [(r.intended_ns, len(r.prompt)) for r in ids.requests] == [
        (0, 30),
        (100, 7),
        (2_000_000_000, 120),
        (3_999_999_900, 2),
    ]


def test_mooncake_prefixes_repeat_as_recorded(made_traces: Path) -> None:
    requests = made("mooncake", made_traces).requests  # from 1 s on: rows 2 to 6
    assert [len(request.prompt) for request in requests] == [1_030, 512, 20, 600, 40]
    assert requests[0].prompt[:512] == requests[1].prompt == requests[3].prompt[:512]
    assert requests[0].prompt[512] != requests[3].prompt[512]


def test_agentic_turns_wait_as_recorded_over_speed(made_traces: Path) -> None:
    requests = made("agentic", made_traces).requests
    assert [request.after for request in requests[:6]] == [None, 0, 1, None, 3, None]
    assert [request.delay_ns for request in requests[:5]] == [0, 184_165_500, 1_250_000_000, 0, 500_000_000]
    assert requests[0].max_tokens == len(' Look around first.\nbash({"command": "ls"})') // 4


@needs_copies
def test_token_ids_repeat_as_the_blocks_of_the_public_trace() -> None:
    prompts = TracePrompts(trace="mooncake_conversation", max_total_tokens=4_096)
    load = TraceLoad(trace="mooncake_conversation", speed=10)
    schedule = build("m", 1, load, prompts, TraceLength(), 60, COPIES)
    rows = replayed(read_trace("mooncake_conversation", COPIES), load, 60 * 10**9)
    assert len(schedule.requests) + schedule.left_out == len(rows)
    kept = [row for row in rows if row.prompt_tokens + row.output_tokens <= 4_096]
    blocks = Counter(block for row in kept for block in row.blocks[: row.prompt_tokens // 512])
    texts = Counter(
        tuple(request.prompt[start : start + 512])
        for request in schedule.requests
        for start in range(0, len(request.prompt) - 511, 512)
    )
    assert sorted(texts.values()) == sorted(blocks.values())
    assert max(texts.values()) > 100


@pytest.mark.parametrize(
    ("load", "prompts", "output", "named"),
    [
        (POISSON, ENGLISH, TraceLength(), "lengths of law 'trace' need a load or prompts that name a trace"),
        (CLOSED, TokenIdPrompts(length=TraceLength()), FIXED, "lengths of law 'trace' need"),
        (
            TraceLoad(trace="azure_conv"),
            TALK,
            TraceLength(),
            "prompts 'conversations' cannot have output lengths",
        ),
        (
            TraceLoad(trace="azure_conv"),
            TracePrompts(trace="azure_code"),
            FIXED,
            "arrivals of trace azure_conv cannot ask for the prompts of trace azure_code",
        ),
        (
            CLOSED,
            TracePrompts(trace="azure_conv"),
            FIXED,
            "24 requests are more than the 4 rows of the trace",
        ),
        (
            TraceLoad(trace="azure_conv", start_s=4),
            ENGLISH,
            FIXED,
            "no request of trace azure_conv short enough arrives from start_s 4 on, at speed 1, within 20 s",
        ),
        (
            TraceLoad(trace="azure_conv"),
            TracePrompts(trace="azure_conv", max_total_tokens=7),
            TraceLength(),
            "no request of trace azure_conv short enough",
        ),
        (CLOSED, TokenIdPrompts(length=UniformLength(low=3, high=9)), FIXED, "length (shortest) 3 must be"),
        (
            CLOSED,
            PrefixGroupPrompts(groups=1, prefix_tokens=3, length=SPAN),
            FIXED,
            "prefix_tokens 3 must be",
        ),
        (
            ClosedLoad(concurrency=9, requests=10),
            ConversationPrompts(turns=FIXED),
            FIXED,
            "requests 10 make 1 conversations, fewer than concurrency 9",
        ),
        (StepsLoad(rates_rps=(1, 2, 3), step_s=10), ENGLISH, FIXED, "take 30 s, more than the 20 s played"),
    ],
)
def test_what_does_not_fit_together_is_refused(load, prompts, output, named: str, made_traces: Path) -> None:
    with pytest.raises(ScheduleError) as caught:
        build("bad", 1, load, prompts, output, 20, made_traces)
    assert named in str(caught.value)


@pytest.mark.parametrize("duration_s", [None, 0, float("nan"), 86_401])
def test_an_open_loop_needs_a_duration(duration_s: float | None) -> None:
    with pytest.raises(
        ScheduleError, match=r"duration_s of an open loop .* must be a number above 0, at most 86400"
    ):
        build("bad", 1, POISSON, ENGLISH, FIXED, duration_s)


def test_a_missing_trace_names_the_command_that_gets_it(tmp_path: Path) -> None:
    with pytest.raises(ScheduleError, match=r"python -m harness\.workload\.traces fetch azure_conv"):
        build("bad", 1, TraceLoad(trace="azure_conv"), ENGLISH, FIXED, 20, tmp_path)


@pytest.mark.parametrize(
    ("load", "text", "concurrency", "rate_rps"),
    [
        (ClosedLoad(concurrency=8, requests=9), "closed, 8 in flight", 8, None),
        (
            ClosedLoad(concurrency=8, requests=9, start_over_s=2.5),
            "closed, 8 in flight, started over 2.5 s",
            8,
            None,
        ),
        (PoissonLoad(rate_rps=10), "Poisson arrivals, 10 requests/s", None, 10),
        (GammaLoad(rate_rps=10, cv=2), "gamma arrivals, 10 requests/s, CV 2", None, 10),
        (ConstantLoad(rate_rps=0.5), "constant gaps, 0.5 requests/s", None, 0.5),
        (BurstsLoad(rate_rps=10, size=4), "bursts of 4, 10 requests/s", None, 10),
        (StepsLoad(rates_rps=(1, 2, 6), step_s=5), "Poisson steps, 1, 2, 6 requests/s, 5 s each", None, 3),
        (
            TraceLoad(trace="azure_conv", speed=2, start_s=60),
            "arrivals of azure_conv from 60 s x2",
            None,
            None,
        ),
        (
            TraceLoad(trace="mooncake_conversation"),
            "arrivals of mooncake_conversation x1, 3 s stamps spread evenly",
            None,
            None,
        ),
    ],
)
def test_loads_in_words(load, text: str, concurrency: int | None, rate_rps: float | None) -> None:
    assert describe_load(load) == text
    assert (concurrency_of(load), rate_of(load)) == (concurrency, rate_rps)


@pytest.mark.parametrize(
    ("prompts", "output", "left_out", "text"),
    [
        (ENGLISH, SPAN, 0, "english"),
        (TokenIdPrompts(length=FIXED), SPAN, 0, "token_ids 16 to 8-40"),
        (GROUPS, UniformLength(low=9, high=9), 0, "prefix_groups 3x64+8-40 to 9"),
        (TokenIdPrompts(length=LOGNORMAL), TraceLength(), 0, "token_ids 10-200 (lognormal 40, 0.8) to trace"),
        (TALK, FIXED, 0, "conversations of 1-4 turns 0.5 s apart to 16"),
        (TracePrompts(trace="azure_conv"), TraceLength(), 0, "azure_conv"),
        (AGENTIC, FIXED, 0, "agentic_coding x2 to 16"),
        (
            TracePrompts(trace="azure_conv", max_total_tokens=2_048),
            TraceLength(),
            838,
            "azure_conv up to 2048 tokens, 838 left out",
        ),
    ],
)
def test_workloads_in_words(prompts, output, left_out: int, text: str) -> None:
    assert describe_workload(prompts, output, left_out) == text
