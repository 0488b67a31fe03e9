"""Shares over correctness.csv, what is less than declared, and systems against each other."""

import pandas as pd
import pytest

from harness.agreement import Divergence, agreement, between, by_system, same_outputs, shortfalls
from tests.figures.made_run import checked

ROWS = [checked(0), checked(1), checked(2), checked(3, 5, 0.25), checked(4, 2, 0.004)]


def test_sums_and_shares():
    found = agreement(ROWS)
    assert (found.prompts, found.identical, found.failed, found.forced) == (5, 3, 0, 5)
    assert (found.forced_tokens, found.forced_agree) == (160, 158)
    assert found.identical_share == 3 / 5 and found.forced_share == 158 / 160
    assert found.gaps == (0.004, 0.25)


def test_without_rows_there_are_no_shares():
    found = agreement([])
    assert found.identical_share is None and found.forced_share is None
    assert by_system([]) == {}


def test_systems_are_summed_apart():
    found = by_system([checked(0, system="vllm"), *ROWS])
    assert [(system, sums.prompts) for system, sums in found.items()] == [("vllm", 1), ("engine", 5)]


@pytest.mark.parametrize(
    ("min_identical", "min_forced", "said"),
    [
        (0.6, 158 / 160, []),
        (0.6, None, []),
        (0.61, None, ["3 of 5 prompts identical, declared is a share of 0.61"]),
        (0.6, 0.99, ["teacher-forced agreement 158 of 160, declared is a share of 0.99"]),
    ],
)
def test_a_share_below_the_declared_one_is_said(min_identical, min_forced, said):
    assert shortfalls(agreement(ROWS), min_identical, min_forced) == said


def test_a_missing_answer_is_always_less():
    rows = [*ROWS, checked(5, identical=False, error="timed out", forced_tokens=None, forced_agree=None)]
    assert shortfalls(agreement(rows), 0.5, 0.5) == [
        "1 of 6 prompts have no answer",
        "1 of 6 prompts are not teacher-forced",
    ]


def test_a_system_that_was_not_teacher_forced_does_not_pass():
    rows = [checked(0, forced_tokens=None, forced_agree=None)]
    assert shortfalls(agreement(rows), 1.0, 0.5) == ["1 of 1 prompts are not teacher-forced"]
    assert shortfalls(agreement(rows), 1.0, None) == []


def answer(system: str, prompt: int, ids: str, **changes):
    return checked(prompt, **(dict(system=system, system_ids=ids) | changes))


def test_systems_are_compared_with_each_other_by_ids():
    rows = [
        answer("engine", 0, "5 6 7"),
        answer("engine", 1, "5 6 7"),
        answer("engine", 2, "5 6 7"),
        answer("vllm", 0, "5 6 7"),
        checked(1, 1, 0.02, system="vllm", system_ids="5 9 7"),
        answer("vllm", 2, "5 6", identical=False, text_identical=False),
    ]
    (found,) = between(rows)
    assert (found.a, found.b, found.prompts, found.identical, found.unknown) == ("engine", "vllm", 3, 1, 0)
    assert found.divergences == (Divergence("p001", 1, 0.02), Divergence("p002", 2, None))


def test_a_gap_belongs_to_the_place_where_the_two_part():
    """Both leave the reference at 1 with the same token and each other at 2: the gap at 1 says nothing."""
    rows = [checked(0, 1, 0.5, system=name, system_ids=f"5 9 {last}") for name, last in (("a", 1), ("b", 2))]
    assert between(rows)[0].divergences == (Divergence("p000", 2, None),)


def test_ids_that_only_begin_alike_are_different_numbers():
    (found,) = between([answer("a", 0, "12 3"), answer("b", 0, "1 23")])
    assert found.divergences == (Divergence("p000", 0, None),)


@pytest.mark.parametrize(
    ("like_reference", "said"),
    [((True, True), (1, 0, 0)), ((True, False), (0, 0, 1)), ((False, False), (0, 1, 0))],
)
def test_without_ids_the_text_decides_as_far_as_it_is_known(like_reference, said):
    rows = [
        answer(name, 0, ids, identical=same, text_identical=same)
        for name, ids, same in zip(("a", "b"), ("", "5 6"), like_reference, strict=True)
    ]
    (found,) = between(rows)
    assert (found.identical, found.unknown, len(found.divergences)) == said


def test_only_prompts_that_both_answered_are_compared():
    rows = [
        answer("a", 0, "1"),
        answer("a", 1, "1"),
        answer("b", 1, "", error="timed out"),
        answer("b", 2, "1"),
    ]
    (found,) = between(rows)
    assert found.prompts == 0


def test_three_systems_make_three_pairs():
    found = between([answer(name, 0, "1") for name in ("c", "a", "b")])
    assert [(pair.a, pair.b) for pair in found] == [("c", "a"), ("c", "b"), ("a", "b")]
    assert between([]) == [] and between([answer("a", 0, "1")]) == []


def test_outputs_of_timed_cells_are_compared_by_request():
    short, long = "0123456789abcdef", "0123456789abcdef" + "f" * 48

    def cell(digests, statuses):
        return pd.DataFrame(
            {"request": range(len(digests)), "status": statuses, "output_sha256": digests}, dtype=object
        )

    a = cell([short, short, short, short], ["ok", "ok", "timeout", "ok"])
    b = cell([long, "f" * 16, short], ["ok", "ok", "ok"])
    assert same_outputs(a, b) == (1, 2)
    assert same_outputs(a, b.iloc[::-1]) == (1, 2)
    assert same_outputs(a, b.iloc[:0]) == (0, 0)
