"""Token-id prompts: exact lengths, small files, and prefixes shared exactly where they are meant to be."""

import gzip
import itertools
import json
from collections import defaultdict

import pytest

from harness.workload.declared import PrefixGroupPrompts, TokenIdPrompts, TracePrompts, UniformLength
from harness.workload.recorded import Row
from harness.workload.token_ids import IdTexts, block_prompts, different_prompts, prefix_group_prompts

CACHE_BLOCK = 16
LENGTHS = UniformLength(low=64, high=192)


def shared(one: list[int], other: list[int]) -> int:
    """Tokens in common from the start."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def prompts(name: str, seed: int, lengths: list[int], **declared) -> list[list[int]]:
    texts = IdTexts(TokenIdPrompts(length=LENGTHS, **declared), name, seed)
    return list(different_prompts(texts, seed, lengths))


@pytest.mark.parametrize("ids", [(1_000, 32_000), (0, 49_152), (7, 263)])
def test_lengths_are_exact_and_ids_in_range(ids: tuple[int, int]) -> None:
    lengths = [*range(1, 40), 1_023, 1_024, 1_031, 5_000]
    made = prompts("a", 1, lengths, ids=ids)
    assert [len(prompt) for prompt in made] == lengths
    assert all(ids[0] <= token < ids[1] for prompt in made for token in prompt)


@pytest.mark.parametrize("ids", [(1_000, 32_000), (7, 263)])
def test_no_two_prompts_share_a_cache_block(ids: tuple[int, int]) -> None:
    """Within a schedule, and between schedules of another name or seed."""
    plays = [("a", 1), ("a", 2), ("b", 1)]
    starts = [
        tuple(prompt[: CACHE_BLOCK // 2])
        for name, seed in plays
        for prompt in prompts(name, seed, [64] * 2_000, ids=ids)
    ]
    assert len(set(starts)) == len(starts)


def test_neighbours_differ_in_the_first_id() -> None:
    firsts = [prompt[0] for prompt in prompts("a", 1, [8] * 5_000)]
    assert len(set(firsts)) == 5_000


def test_prompts_compress_well() -> None:
    lengths = [64 + place * 37 % 129 for place in range(5_000)]
    text = "\n".join(json.dumps(prompt) for prompt in prompts("a", 1, lengths))
    assert len(gzip.compress(text.encode(), mtime=0)) < 40 * 5_000


def test_a_group_shares_its_prefix_and_nothing_more() -> None:
    declared = PrefixGroupPrompts(groups=4, prefix_tokens=100, length=LENGTHS)
    made = list(prefix_group_prompts(IdTexts(declared, "a", 1), 1, declared, [20] * 400))
    assert {len(prompt) for prompt in made} == {120}
    groups = defaultdict(list)
    for prompt in made:
        groups[tuple(prompt[:100])].append(prompt)
    assert len(groups) == 4
    assert all(70 < len(members) < 130 for members in groups.values())
    for members in groups.values():
        assert {shared(one, other) for one, other in itertools.combinations(members[:40], 2)} == {100}
    assert {shared(list(a), list(b)) for a, b in itertools.combinations(groups, 2)} == {0}


def test_prefixes_of_other_schedules_are_others() -> None:
    declared = PrefixGroupPrompts(groups=3, prefix_tokens=64, length=LENGTHS)
    prefixes = [
        {
            tuple(prompt[:8])
            for prompt in prefix_group_prompts(IdTexts(declared, name, seed), seed, declared, [9] * 60)
        }
        for name, seed in (("a", 1), ("a", 2), ("b", 1))
    ]
    assert len(set.union(*prefixes)) == sum(map(len, prefixes)) == 9


def test_equal_blocks_of_a_trace_are_equal_ids() -> None:
    rows = [
        Row(0, 1_100, 1, (0, 1, 2)),
        Row(0, 1_030, 1, (0, 1, 3)),
        Row(0, 700, 1, (0, 4)),
        Row(0, 1_212, 1, (5, 6, 4)),
        Row(0, 690, 1, (0, 4)),
    ]
    declared = TracePrompts(trace="mooncake_conversation")
    made = list(block_prompts(IdTexts(declared, "a", 1), rows))
    assert [len(prompt) for prompt in made] == [row.prompt_tokens for row in rows]
    expected = {(0, 1): 1_024, (0, 2): 512, (1, 2): 512, (0, 3): 0, (2, 3): 0, (2, 4): 690, (1, 4): 512}
    assert {pair: shared(made[pair[0]], made[pair[1]]) for pair in expected} == expected
    assert made[2][512:] == made[3][1_024:]
