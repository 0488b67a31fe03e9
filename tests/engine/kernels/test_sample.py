"""The noise of draws, and which tokens the filters leave."""

import math

import pytest
import torch

from engine.kernels.sample import gumbel_noise, gumbel_of, keep_mask, sample


def test_no_uniform_number_makes_infinite_noise() -> None:
    """Infinite noise wins over every probability; numbers that round to 1 made one draw in 500 such a one."""
    extremes = torch.tensor([0, 1, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, -1, -(1 << 32), -(1 << 63)])
    assert gumbel_of(extremes).isfinite().all()
    top = torch.arange(1 << 16) << 48  # every value of the first sixteen bits, and 0 or 1 in all others
    assert gumbel_of(torch.cat([top, top | ((1 << 48) - 1)])).isfinite().all()


def test_noise_is_that_of_its_formula() -> None:
    bits = torch.randint(-(1 << 63), (1 << 63) - 1, (100_000,))
    small = bits & 0x000FFFFFFFFFFFFF  # where most of the precision is needed
    for numbers in (bits, small):
        v = (((numbers >> 32) & 0xFFFFFFFF).double() + 0.5) / (1 << 32)
        exact = -torch.log(-torch.log1p(-v))
        error = (gumbel_of(numbers).double() - exact).abs()
        assert float(error.max()) < 1e-3
        assert float(error[v < 2**-11].max()) < 1e-6


def test_noise_is_standard_gumbel_and_differs_by_seed_position_and_token() -> None:
    seeds, positions = torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij")
    noise = gumbel_noise(seeds.flatten(), positions.flatten(), 4000)
    assert noise.unique().numel() > 0.99 * noise.numel()
    assert float(noise.mean()) == pytest.approx(0.5772, abs=0.01)
    assert float(noise.var()) == pytest.approx(math.pi**2 / 6, abs=0.03)


def test_draws_have_the_probabilities_of_the_scores() -> None:
    """Chi-square over 40,000 draws of eight tokens: 29.9 is passed once in 10,000 times."""
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -2.0, -3.0, 1.5, 0.5])
    draws, temperature = 40_000, 0.8
    rows = logits.expand(draws, -1)

    def all_of(value: float) -> torch.Tensor:
        return torch.full((draws,), value)

    seeds, positions = torch.arange(draws) // 200, torch.arange(draws) % 200
    off = torch.zeros(draws, dtype=torch.int64)
    drawn = sample(rows, all_of(temperature), off, all_of(1.0), all_of(0.0), seeds, positions, False)
    expected = (logits / temperature).softmax(0) * draws
    assert float(((drawn.bincount(minlength=8) - expected).square() / expected).sum()) < 29.9


def kept(scores: list[float], top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> set[int]:
    mask = keep_mask(
        torch.tensor([scores]), torch.tensor([top_k]), torch.tensor([top_p]), torch.tensor([min_p])
    )
    return set(mask[0].nonzero()[:, 0].tolist())


def test_filters_keep_what_their_definitions_say() -> None:
    scores = [math.log(p) for p in (0.1, 0.4, 0.05, 0.25, 0.2)]
    assert kept(scores) == {0, 1, 2, 3, 4}
    assert kept(scores, top_k=2) == {1, 3}
    assert kept(scores, top_k=99) == {0, 1, 2, 3, 4}
    assert kept(scores, top_p=0.39) == {1}
    assert kept(scores, top_p=0.41) == {1, 3}
    assert kept(scores, top_p=0.0) == {1}
    assert kept(scores, min_p=0.49) == {1, 3, 4}
    assert kept(scores, min_p=1.0) == {1}
    # Of the three best, 0.85 in all, the first has 0.47 and two have 0.76 together.
    assert kept(scores, top_k=3, top_p=0.75) == {1, 3}
    assert kept(scores, top_k=3, top_p=0.77) == {1, 3, 4}
    assert kept(scores, top_k=3, top_p=0.77, min_p=0.6) == {1, 3}


def test_equal_scores_stay_or_go_together() -> None:
    scores = [math.log(p) for p in (0.2, 0.3, 0.2, 0.2, 0.1)]
    assert kept(scores, top_k=2) == {0, 1, 2, 3}
    assert kept(scores, top_p=0.4) == {0, 1, 2, 3}
    assert kept(scores, top_p=0.29) == {1}
