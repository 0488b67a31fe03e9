"""append_best: the kernel against the reference."""

import pytest
import torch

from engine.kernels.append_best import append_best_reference, append_best_triton
from tests.engine.kernels.measured import Place

SLOTS, POSITIONS = 6, 20


def made(place: Place, logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Sequences of lengths 5 … 10; slot 2 has finished, slot 3 is one short of its greatest length."""
    table = torch.full((SLOTS, 9), -1, dtype=torch.int64)
    table[:, 0] = torch.arange(5, 5 + SLOTS)
    table[:, 1] = torch.tensor([0, 0, 1, 0, 0, 0])
    table[:, 2] = POSITIONS
    table[3, 2] = 9
    table[4, 4] = 17  # a stop id
    tokens = torch.randint(0, 90, (SLOTS, POSITIONS))
    table, tokens, slots = (t.to(place.device) for t in (table, tokens, torch.tensor([4, 0, 3, 2, 5])))
    return logits.to(place.device), table[:, :3], table[:, 3:7], tokens, slots


def check(place: Place, logits: torch.Tensor) -> torch.Tensor:
    mine, theirs = made(place, logits), made(place, logits)
    theirs[3].copy_(mine[3])
    results, expected = append_best_triton(*mine), append_best_reference(*theirs)
    appended = expected[:, 0] == 1
    assert torch.equal(results[appended], expected[appended])
    assert torch.equal(results[:, [0, 2, 3]], expected[:, [0, 2, 3]])
    for ours, reference in zip(mine[1:4], theirs[1:4], strict=True):
        assert torch.equal(ours, reference)
    return results


@pytest.mark.parametrize("vocabulary", [40, 4096, 9000])
def test_best_tokens_are_appended(place: Place, vocabulary: int) -> None:
    logits = torch.randn(5, vocabulary)
    logits[0, 17] = 50  # slot 4 stops
    results = check(place, logits)
    assert results[0].tolist() == [1, 17, 1, 0]
    assert results[2, 2] == 1  # full
    assert results[3].tolist()[0] == 0 and results[3, 2] == 1  # had finished
    assert results[1].tolist() == [1, int(logits[1].argmax()), 0, 0]


def test_of_equal_logits_the_first_is_taken(place: Place) -> None:
    logits = torch.zeros(5, 9000)
    logits[1, [5000, 8999, 4097]] = 3.0
    assert check(place, logits)[:, 1].tolist()[1] == 4097
    assert check(place, logits)[4, 1] == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_row_without_a_finite_best_ends_as_broken(place: Place, value: float) -> None:
    logits = torch.randn(5, 300)
    logits[1] = value
    logits[4, 7] = value
    results = check(place, logits)
    assert results[1, [0, 2, 3]].tolist() == [0, 1, 1]
    alive = value == float("-inf")
    assert results[4, 3] == (0 if alive else 1)
    assert results[3, 3] == 0  # what has finished is not broken
