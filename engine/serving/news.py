"""What steps tell about requests: one row of numbers each, so that a step of hundreds makes few objects."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from engine.serving.request import Finish, TokenLogprobs, Update

_FINISHES = tuple(Finish)
Told = dict[int, tuple[TokenLogprobs, ...]]
"""Log probabilities by request id, of those that asked."""


@dataclass(slots=True, eq=False)
class News:
    """One row for each request, (n,) each: its id (int64), how many tokens are new, its Finish, and how many
    tokens of its prompt were cached. tokens holds the new ones of all rows, in their order.

    Iterating makes an Update of each row.
    """

    ids: np.ndarray
    counts: np.ndarray
    finishes: np.ndarray
    cached: np.ndarray
    tokens: np.ndarray
    logprobs: Told = field(default_factory=dict)
    prompt_logprobs: Told = field(default_factory=dict)

    @staticmethod
    def of(updates: Sequence[Update]) -> "News":
        tokens = [token for update in updates for token in update.token_ids]
        return News(
            np.array([update.request_id for update in updates], np.int64),
            np.array([len(update.token_ids) for update in updates], np.int64),
            np.array([update.finish for update in updates], np.int64),
            np.array([update.cached_tokens for update in updates], np.int64),
            np.array(tokens, np.int64),
            {update.request_id: update.logprobs for update in updates if update.logprobs},
            {update.request_id: update.prompt_logprobs for update in updates if update.prompt_logprobs},
        )

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Update]:
        for request_id, token_ids, finish, cached in self.rows():
            logprobs = self.logprobs.get(request_id, ())
            prompt = self.prompt_logprobs.get(request_id, ())
            yield Update(request_id, token_ids, _FINISHES[finish], cached, logprobs, prompt)

    def rows(self) -> Iterator[tuple[int, list[int], int, int]]:
        """Id, new tokens, Finish and cached tokens of each row, as plain Python."""
        tokens, at = self.tokens.tolist(), 0
        columns = (self.ids.tolist(), self.counts.tolist(), self.finishes.tolist(), self.cached.tolist())
        for request_id, count, finish, cached in zip(*columns, strict=True):
            yield request_id, tokens[at : at + count], finish, cached
            at += count


def listed(parts: Sequence[News]) -> News:
    """All rows, one part after the other."""
    logprobs: Told = {}
    prompt_logprobs: Told = {}
    for part in parts:
        logprobs |= part.logprobs
        prompt_logprobs |= part.prompt_logprobs
    return News(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.counts for part in parts]),
        np.concatenate([part.finishes for part in parts]),
        np.concatenate([part.cached for part in parts]),
        np.concatenate([part.tokens for part in parts]),
        logprobs,
        prompt_logprobs,
    )


def merged(parts: Sequence[News]) -> News:
    """One row a request, in order of ids: its tokens of all parts, and what the last part said of the rest.

    For news without log probabilities.
    """
    if len(parts) == 1:
        return parts[0]
    every = listed(parts)
    ids, row = np.unique(every.ids, return_inverse=True)
    latest = np.empty(len(ids), np.int64)
    latest[row] = np.arange(len(row))  # of equal rows the last one stays
    counts = np.zeros(len(ids), np.int64)
    np.add.at(counts, row, every.counts)
    tokens = every.tokens[np.repeat(row, every.counts).argsort(kind="stable")]
    return News(ids, counts, every.finishes[latest], every.cached[latest], tokens)
