"""What the host keeps by slot, in arrays, so that results are applied to all sequences of a step at once."""

import heapq
from collections.abc import Iterable

import numpy as np

from engine.serving.request import Request


class Slots:
    """A slot is one request's until no queued step names it any more.

    owner: the request, or None. live: whether it has not ended. ids, cached: what news of it repeat. base:
    once it has sampled, its length is base + the number of decode steps planned. history: (slots,
    max_model_len), its tokens; those whose results were not read yet are missing.
    """

    def __init__(self, count: int, max_length: int) -> None:
        self.owner: list[Request | None] = [None] * count
        self.live = np.zeros(count, bool)
        self.ids = np.zeros(count, np.int64)
        self.cached = np.zeros(count, np.int64)
        self.base = np.zeros(count, np.int64)
        # Pages are taken when they are first written.
        self.history = np.zeros((count, max_length), np.int32)
        self._free = list(range(count))  # a heap

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, request: Request) -> None:
        """Give the request the lowest slot that is free, with its tokens as history. One must be free."""
        request.slot = slot = heapq.heappop(self._free)
        self.owner[slot] = request
        self.live[slot] = True
        self.ids[slot] = request.id
        self.cached[slot] = request.cached
        self.history[slot, : len(request.tokens)] = request.tokens

    def give_back(self, request: Request) -> None:
        self.owner[request.slot] = None
        self.live[request.slot] = False
        heapq.heappush(self._free, request.slot)
        request.slot = -1

    def check(self, requests: Iterable[Request]) -> None:
        """Assert that slots and these requests, all there are, agree."""
        held = {request.slot: request for request in requests if request.slot >= 0}
        for slot, owner in enumerate(self.owner):
            assert owner is held.get(slot), f"slot {slot} has two requests, or a lost one"
            assert (slot in self._free) == (owner is None), f"slot {slot} is free and taken at once"
        assert len(set(self._free)) == len(self._free), "a slot is free twice"
