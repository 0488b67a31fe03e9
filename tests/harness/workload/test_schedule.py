"""Schedules: canonical files, golden hashes, refusal of bad values and damage."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.workload.prompts import load_prompts
from harness.workload.schedule import (
    Schedule,
    ScheduledRequest,
    ScheduleError,
    closed_loop,
    correctness,
    poisson,
    read,
    write,
)

PROMPTS = (
    "Why is the sea salt?",
    "Name a river.\nOne word.",
    'Say "ä" twice.',
    "Count to three.",
    "What is dew?",
)

CLOSED = {"name": "closed", "seed": 7, "concurrency": 4, "requests": 40, "max_tokens": (8, 64)}
POISSON = {"name": "open", "seed": 7, "rate_rps": 2.5, "duration_s": 20.0, "max_tokens": (8, 64)}
CORRECTNESS = {"count": 3, "max_tokens": 32}


def build(kind: str) -> Schedule:
    if kind == "closed":
        return closed_loop(PROMPTS, **CLOSED)
    if kind == "poisson":
        return poisson(PROMPTS, **POISSON)
    return correctness(PROMPTS, **CORRECTNESS)


KINDS = ("closed", "poisson", "correctness")


# These hashes are the promise that a seed means the same load everywhere and always: when one changes, every
# committed schedule would, too. They are the same on Python 3.11 and 3.12.
@pytest.mark.parametrize(
    ("kind", "sha256"),
    [
        ("closed", "22f9b5e00d2958f264e47c9df0d12d0ffdc6a3d38bf569ef5bc67d2e8531d04f"),
        ("poisson", "7d9117be0d545783c6e77ebf6195f2013fcc21cea4c7a973c00aff212b2f197e"),
        ("correctness", "1241ca745562540618ff4ccad3145e043e455124abed2449b80acac9737abb27"),
    ],
)
def test_golden_hash(kind: str, sha256: str, tmp_path: Path) -> None:
    assert write(build(kind), tmp_path / "schedule.jsonl") == sha256


def conversation(**changes) -> Schedule:
    first = ScheduledRequest(0, None, "a", 4, temperature=0.0, ignore_eos=True, seed=None)
    second = replace(first, index=1, prompt="ab", after=0, delay_ns=5)
    third = replace(first, index=2, prompt="c", **changes)
    return Schedule("talk", "closed", 2, None, None, seed=0, requests=(first, second, third), start_over_ns=9)


def test_conversations_are_kept(tmp_path: Path) -> None:
    write(conversation(), tmp_path / "s.jsonl")
    assert read(tmp_path / "s.jsonl")[0] == conversation()


def test_a_conversation_has_no_branches(tmp_path: Path) -> None:
    with pytest.raises(ScheduleError, match=r"request 2 .*after 0 has a next turn already"):
        write(conversation(after=0), tmp_path / "s.jsonl")
    write(conversation(after=1), tmp_path / "s.jsonl")


def test_a_gzip_file_has_the_hash_of_its_text(tmp_path: Path) -> None:
    plain, packed = tmp_path / "s.jsonl", tmp_path / "s.jsonl.gz"
    sha256 = write(build("closed"), plain)
    assert write(build("closed"), packed) == sha256
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert read(packed) == read(plain) == (build("closed"), sha256)
    first = packed.read_bytes()
    write(build("closed"), packed)
    assert packed.read_bytes() == first
    assert first[4:8] == bytes(4)  # no time of writing


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda data: data[:40] + b"x" * 9 + data[49:], lambda _: b"{}"]
)
def test_a_damaged_gzip_file_is_refused(damage, tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl.gz"
    write(build("closed"), path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ScheduleError, match=f"{path}: not a whole gzip file"):
        read(path)


@pytest.mark.parametrize("kind", KINDS)
def test_file_is_read_as_written(kind: str, tmp_path: Path) -> None:
    schedule, path = build(kind), tmp_path / "schedule.jsonl"
    sha256 = write(schedule, path)
    assert read(path) == (schedule, sha256)
    assert [entry.name for entry in tmp_path.iterdir()] == ["schedule.jsonl"]


def test_token_ids_and_seed_are_kept(tmp_path: Path) -> None:
    request = ScheduledRequest(0, 5, [1, 2, 49_151], 4, temperature=0.7, ignore_eos=True, seed=11)
    schedule = Schedule("ids", "open", None, 1.0, 10, seed=0, requests=(request,))
    write(schedule, tmp_path / "s.jsonl")
    assert read(tmp_path / "s.jsonl")[0] == schedule


def test_timed_requests_are_greedy_exact_and_differ() -> None:
    schedule = build("closed")
    assert schedule.concurrency == 4
    assert [request.index for request in schedule.requests] == list(range(40))
    assert all(request.ignore_eos and request.temperature == 0.0 for request in schedule.requests)
    assert all(request.intended_ns is None for request in schedule.requests)
    assert {request.max_tokens for request in schedule.requests} <= set(range(8, 65))
    first_lines = [request.prompt.split("\n")[0] for request in schedule.requests]
    assert first_lines == [f"Request {index:04d} of closed-7." for index in range(40)]


def test_each_round_uses_every_prompt_once() -> None:
    texts = [request.prompt.split("\n\n", 1)[1] for request in build("closed").requests]
    for start in range(0, 40, len(PROMPTS)):
        assert sorted(texts[start : start + len(PROMPTS)]) == sorted(PROMPTS)
    assert texts[:5] != texts[5:10]


def test_streams_do_not_touch_each_other() -> None:
    """Lengths and order of prompts stay when the rate changes, arrivals stay when lengths change."""
    base = poisson(PROMPTS, **POISSON).requests
    faster = poisson(PROMPTS, **POISSON | {"rate_rps": 5.0}).requests
    shorter = poisson(PROMPTS, **POISSON | {"max_tokens": (1, 2)}).requests
    count = len(base)
    assert [(r.max_tokens, r.prompt) for r in base] == [(r.max_tokens, r.prompt) for r in faster[:count]]
    assert [r.intended_ns for r in base] == [r.intended_ns for r in shorter]


def test_correctness_takes_the_first_prompts_as_they_are() -> None:
    schedule = correctness(PROMPTS, count=3, max_tokens=32)
    assert tuple(request.prompt for request in schedule.requests) == PROMPTS[:3]
    assert all(not request.ignore_eos and request.max_tokens == 32 for request in schedule.requests)


@pytest.mark.parametrize(
    ("builder", "changes", "named"),
    [
        (closed_loop, {"concurrency": 0}, "concurrency 0 must be an integer from 1"),
        (closed_loop, {"concurrency": 2.0}, "concurrency 2.0"),
        (closed_loop, {"requests": 3}, "requests 3 must be an integer from 4"),
        (closed_loop, {"max_tokens": (0, 5)}, "max_tokens (lower end) 0"),
        (closed_loop, {"max_tokens": (6, 5)}, "max_tokens (lower end) 6 must be an integer from 1 to 5"),
        (closed_loop, {"max_tokens": (1, 10**9)}, "max_tokens (upper end) 1000000000"),
        (closed_loop, {"name": "a b"}, "name 'a b'"),
        (closed_loop, {"seed": "x"}, "seed 'x'"),
        (poisson, {"rate_rps": 0}, "rate_rps 0 must be a number above 0"),
        (poisson, {"rate_rps": float("nan")}, "rate_rps nan"),
        (poisson, {"rate_rps": float("inf")}, "rate_rps inf"),
        (poisson, {"rate_rps": -1.5}, "rate_rps -1.5"),
        (poisson, {"duration_s": 0}, "duration_s 0"),
        (poisson, {"duration_s": 90_000}, "at most 86400"),
        (poisson, {"rate_rps": 1e6, "duration_s": 3600}, "more than 10000000"),
        (poisson, {"rate_rps": 1e-6, "duration_s": 1}, "no request arrives"),
        (correctness, {"count": 6}, "count 6 must be an integer from 1 to 5"),
        (correctness, {"max_tokens": 0}, "max_tokens 0"),
    ],
)
def test_bad_arguments_are_named(builder, changes: dict, named: str) -> None:
    arguments = {closed_loop: CLOSED, poisson: POISSON, correctness: CORRECTNESS}[builder]
    with pytest.raises(ScheduleError) as caught:
        builder(PROMPTS, **arguments | changes)
    assert named in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_no_prompts_are_refused() -> None:
    with pytest.raises(ScheduleError, match="empty"):
        closed_loop([], **CLOSED)


def _damage_count(lines: list[str]) -> list[str]:
    return lines[:-1]


def _edit(line: int, **changes) -> object:
    def edit(lines: list[str]) -> list[str]:
        entry = json.loads(lines[line]) | changes
        lines[line] = json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return lines

    return edit


def _drop_field(lines: list[str]) -> list[str]:
    entry = json.loads(lines[3])
    del entry["max_tokens"]
    lines[3] = json.dumps(entry)
    return lines


def _spaced(lines: list[str]) -> list[str]:
    lines[2] = json.dumps(json.loads(lines[2]), sort_keys=True)
    return lines


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda lines: ["{}", *lines[1:]], "line 1: not a schedule"),
        (lambda lines: ["id,prompt"], "line 1: not JSON"),
        (lambda lines: ["[1]"], "line 1: not a JSON object"),
        (lambda lines: [*lines[:4], lines[4][:20], *lines[5:]], "line 5: not JSON"),
        (_damage_count, "its header says"),
        (_edit(0, version=1), "line 1: version 1; this reader knows 2"),
        (_edit(0, rate_rps=0.0), "rate_rps 0.0"),
        (_edit(0, kind="loop"), "kind 'loop'"),
        (_edit(2, index=7), "line 3 of its file): index 7"),
        (_edit(2, intended_ns=None), "line 3 of its file): intended_ns None"),
        (_edit(5, intended_ns=0), "line 6 of its file): intended_ns 0"),
        (_edit(2, prompt=""), "prompt is empty"),
        (_edit(2, prompt=[1, -1]), "token id -1"),
        (_edit(2, temperature=0), "temperature 0 must be a float"),
        (_edit(0, start_over_ns=5), "start_over_ns of an open loop 5 must be an integer from 0 to 0"),
        (_edit(0, left_out=-1), "left_out -1"),
        (_edit(2, delay_ns=5), "line 3 of its file): delay_ns of a first turn 5"),
        (_edit(2, after=0), "line 3 of its file): intended_ns"),
        (_edit(2, after=1, intended_ns=None), "line 3 of its file): after 1 must be an integer from 0 to 0"),
        (_edit(2, after=0, intended_ns=None, delay_ns=-1), "line 3 of its file): delay_ns -1"),
        (_edit(2, extra=1), "line 3: missing fields [], unknown fields ['extra']"),
        (_drop_field, "line 4: missing fields ['max_tokens']"),
        (_spaced, "line 3: not in canonical form"),
    ],
)
def test_damaged_files_are_refused_with_the_line(damage, named: str, tmp_path: Path) -> None:
    path = tmp_path / "schedule.jsonl"
    write(build("poisson"), path)
    lines = damage(path.read_text(encoding="utf-8").splitlines())
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(ScheduleError) as caught:
        read(path)
    assert named in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("cut", [1, 30, 500])
def test_file_cut_short_is_refused(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "schedule.jsonl"
    write(build("closed"), path)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(ScheduleError, match="cut short"):
        read(path)


def test_empty_and_binary_files_are_refused(tmp_path: Path) -> None:
    for content in (b"", b"\n", b"\x1f\x8b\x00\xff\n"):
        (tmp_path / "s").write_bytes(content)
        with pytest.raises(ScheduleError, match="line 1"):
            read(tmp_path / "s")


def test_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    target = tmp_path / "schedule.jsonl"
    target.mkdir()  # a file cannot replace a folder
    with pytest.raises(OSError):
        write(build("closed"), target)
    assert list(tmp_path.iterdir()) == [target]


def test_invalid_schedule_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ScheduleError, match="concurrency None"):
        write(replace(build("closed"), concurrency=None), tmp_path / "s.jsonl")
    assert not list(tmp_path.iterdir())


def test_repository_prompts_make_a_schedule() -> None:
    texts = [prompt.text for prompt in load_prompts()]
    schedule = closed_loop(texts, name="smoke", seed=1, concurrency=4, requests=300, max_tokens=(16, 48))
    assert len({request.prompt for request in schedule.requests}) == 300
