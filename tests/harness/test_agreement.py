"""Shares over correctness.csv, and what is less than declared."""

import pytest

from harness.agreement import agreement, by_system, shortfalls
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
