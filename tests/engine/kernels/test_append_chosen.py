"""The end of a step: the kernel against Sampler and append, over one table of sequences."""

import copy
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from engine.kernels import append_chosen
from engine.kernels.append_chosen import append_chosen_triton
from engine.serving.plan import Admit
from engine.serving.request import SamplingParams
from engine.serving.sampler import Sampler
from engine.serving.slot_row import ROW_WORDS, columns, packed_row
from tests.engine.kernels.measured import Place

POSITIONS = 24
TILE, SMALL_TILE = 4096, 64
GREEDY = SamplingParams()


@dataclass
class Sequences:
    """One row of the table a sequence: what it asks for, its known tokens, its end."""

    place: Place
    params: list[SamplingParams]
    tokens: list[list[int]]
    prompt_length: int = 2
    stop_ids: tuple[int, ...] = ()
    greatest: int = POSITIONS
    finished: tuple[int, ...] = ()
    rows: torch.Tensor = field(init=False)
    history: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.rows = torch.zeros(len(self.params), ROW_WORDS, dtype=torch.int64)
        self.history = torch.zeros(len(self.params), POSITIONS, dtype=torch.int64)
        for slot, (params, known) in enumerate(zip(self.params, self.tokens, strict=True)):
            words = packed_row(
                Admit(slot, np.array(known), self.prompt_length, params, self.stop_ids, self.greatest)
            )
            self.rows[slot, : len(words)] = torch.from_numpy(words)
            self.rows[slot, 1] = slot in self.finished
            self.history[slot, : len(known)] = torch.tensor(known)
        self.rows, self.history = self.rows.to(self.place.device), self.history.to(self.place.device)

    def by_kernel(self, logits: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        counts = torch.zeros(logits.shape, dtype=torch.int32, device=logits.device)
        results = append_chosen_triton(logits.clone(), counts, columns(self.rows), self.history, slots)
        assert not counts.any()
        return results

    def by_reference(self, logits: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """On the CPU, where Sampler never takes the kernel."""
        rows, history = self.rows.cpu(), self.history.cpu()
        results = Sampler(columns(rows), history, logits.shape[1]).append_chosen(
            logits.clone().cpu(), slots.cpu()
        )
        self.rows, self.history = rows.to(self.rows.device), history.to(self.history.device)
        return results.to(logits.device)


@pytest.fixture(autouse=True)
def small_tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the interpreter, which is slow: vocabularies of several tiles are small then."""
    place = request.getfixturevalue("place")
    if not place.large:
        if place.dtype == torch.float16:
            pytest.skip("logits are fp32 for both")
        monkeypatch.setattr(append_chosen, "_LOGITS", SMALL_TILE)


def tiles(place: Place, number: float) -> int:
    """A vocabulary of so many tiles."""
    return int(number * (TILE if place.large else SMALL_TILE))


def wide_logits(place: Place, rows: int, vocabulary: int, scale: float = 3.0) -> torch.Tensor:
    """As the model gives them: fp32, or fp64 of an fp64 model."""
    logits = torch.randn(rows, vocabulary, dtype=torch.float64) * scale
    return logits.to(place.device, torch.float64 if place.dtype == torch.float64 else torch.float32)


def check(sequences: Sequences, logits: torch.Tensor, slots: list[int]) -> torch.Tensor:
    """Both do the same to tables and results, but for the token of a row that appends none."""
    at = torch.tensor(slots, device=logits.device)
    mine, theirs = sequences, copy.deepcopy(sequences)
    results, expected = mine.by_kernel(logits, at), theirs.by_reference(logits, at)
    appended = expected[:, 0] == 1
    assert torch.equal(results[appended], expected[appended])
    assert torch.equal(results[:, [0, 2, 3]], expected[:, [0, 2, 3]])
    assert torch.equal(mine.rows, theirs.rows)
    assert torch.equal(mine.history, theirs.history)
    return results


def known(rows: int, length: int, vocabulary: int) -> list[list[int]]:
    return torch.randint(0, vocabulary, (rows, length)).tolist()


@pytest.mark.parametrize("number", [0.6, 1, 2.2])
def test_best_tokens_are_appended(place: Place, number: float) -> None:
    vocabulary, full = tiles(place, number), number == 1
    sequences = Sequences(
        place, [GREEDY] * 5, known(5, 5, 30), stop_ids=(17,), greatest=7 - full, finished=(2,)
    )
    logits = wide_logits(place, 4, vocabulary)
    logits[0, 17] = 50
    results = check(sequences, logits, [4, 0, 2, 3])
    assert results[0].tolist() == [1, 17, 1, 0]  # stopped
    assert results[1].tolist() == [1, int(logits[1].argmax()), int(full), 0]
    assert results[2].tolist()[0] == 0 and results[2, 2] == 1  # had finished


def test_of_equal_logits_the_first_is_taken(place: Place) -> None:
    sequences = Sequences(place, [GREEDY] * 2, known(2, 5, 30))
    vocabulary, first = tiles(place, 2.2), tiles(place, 1) + 1
    logits = torch.zeros_like(wide_logits(place, 2, vocabulary))
    logits[1, [first + 9, vocabulary - 1, first]] = 3.0
    assert check(sequences, logits, [0, 1])[:, 1].tolist() == [0, first]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    "params", [GREEDY, SamplingParams(temperature=0.8, top_p=0.5, frequency_penalty=1.0)]
)
def test_a_row_without_a_finite_best_ends_as_broken(
    place: Place, value: float, params: SamplingParams
) -> None:
    sequences = Sequences(place, [params] * 3, known(3, 5, 30), finished=(2,))
    logits = wide_logits(place, 3, tiles(place, 1.5))
    logits[[0, 2]] = value
    logits[1, 7] = value
    at = torch.arange(3, device=place.device)
    results = sequences.by_kernel(logits, at)
    assert results[0, [0, 2, 3]].tolist() == [0, 1, 1]
    assert results[1, 3] == (0 if value == float("-inf") else 1)
    assert results[2, 3] == 0  # what has finished is not broken


WISHES = {
    "warm": SamplingParams(temperature=0.7, seed=3),
    "hot": SamplingParams(temperature=2.0, seed=-(1 << 63)),
    "one": SamplingParams(temperature=1.0, top_k=1, seed=5),
    "few": SamplingParams(temperature=1.0, top_k=7, seed=1 << 62),
    "all of them": SamplingParams(temperature=1.0, top_k=100_000, seed=6),
    "nucleus": SamplingParams(temperature=1.3, top_p=0.6, seed=7),
    "none but the best": SamplingParams(temperature=1.3, top_p=0.0, seed=8),
    "share": SamplingParams(temperature=1.0, min_p=0.2, seed=9),
    "whole share": SamplingParams(temperature=1.0, min_p=1.0, seed=9),
    "filters": SamplingParams(temperature=1.0, top_k=50, top_p=0.8, min_p=0.05, seed=10),
    "repetition": SamplingParams(repetition_penalty=1.7),
    "presence": SamplingParams(presence_penalty=1.5),
    "frequency": SamplingParams(frequency_penalty=-0.7),
    "penalties": SamplingParams(
        repetition_penalty=0.8, presence_penalty=-1.0, frequency_penalty=0.5, temperature=0.9, seed=1, top_k=9
    ),
    "bias": SamplingParams(logit_bias=((5, 9.0), (6, 9.5), (39, -100.0))),
    "warm bias": SamplingParams(logit_bias=((5, 4.0),), temperature=0.5, seed=12),
    "not yet": SamplingParams(min_tokens=10),
    "everything": SamplingParams(
        temperature=0.9, top_k=30, top_p=0.95, min_p=0.01, seed=13, repetition_penalty=1.1,
        presence_penalty=0.4, frequency_penalty=0.2, logit_bias=((3, 5.0), (11, -5.0)), min_tokens=10,
    ),
    "nothing": GREEDY,
}  # fmt: skip


@pytest.mark.parametrize("number", [0.7, 2.2])
def test_a_mixture_of_wishes_is_met_row_by_row(place: Place, number: float) -> None:
    """Tokens that occur once, often, only in the prompt, and on both sides of a tile; stop ids among them."""
    wishes = list(WISHES.values())
    vocabulary, edge = tiles(place, number), tiles(place, 1)
    near = [min(edge, vocabulary - 1) - 1, min(edge, vocabulary - 1)]
    tokens = [[*near, 5, 6, 5, 5, near[1], 8, *more] for more in known(len(wishes), 4, vocabulary)]
    sequences = Sequences(place, wishes, tokens, prompt_length=3, stop_ids=(5, vocabulary - 1))
    for _ in range(3 if place.large else 1):
        logits = wide_logits(place, len(wishes), vocabulary, scale=2.0)
        logits[:, [5, near[0]]] += 6  # what penalties and bans change is among the best
        check(sequences, logits, list(range(len(wishes))))


def test_tokens_as_likely_as_the_last_one_that_stays_may_be_drawn(place: Place) -> None:
    """Four tokens share the second place: two of the best are wished for, five can come."""
    rows = 64 if place.large else 10
    logits = torch.full_like(wide_logits(place, rows, 60), -9.0)
    logits[:, [2, 19, 33, 59]] = 1.0
    logits[:, 41] = 1.25
    for wish in ({"top_k": 2}, {"top_p": 0.4}):
        params = [SamplingParams(temperature=1.0, seed=seed, **wish) for seed in range(rows)]
        drawn = check(Sequences(place, params, known(rows, 3, 60)), logits, list(range(rows)))[:, 1]
        assert {2, 19, 33, 41, 59} >= set(drawn.tolist()) > {59}


def test_a_row_is_the_same_whatever_its_mates(place: Place) -> None:
    wishes = list(WISHES.values())
    vocabulary = tiles(place, 0.9)
    logits, tokens = wide_logits(place, len(wishes), vocabulary), known(len(wishes), 6, vocabulary)
    together = Sequences(place, wishes, tokens).by_kernel(logits, torch.arange(len(wishes)).to(place.device))
    for slot in (0, 9, len(wishes) - 2):
        alone = Sequences(place, [wishes[slot]], [tokens[slot]])
        result = alone.by_kernel(logits[slot : slot + 1], torch.zeros(1, dtype=torch.int64).to(place.device))
        assert torch.equal(result[0], together[slot])
