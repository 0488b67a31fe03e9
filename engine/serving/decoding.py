"""The sequences that get one token a step: what is due for them is known ahead, and looked up by the step."""

from collections import Counter
from collections.abc import Collection

import numpy as np

from engine.serving.request import Features, Request
from engine.serving.slots import Slots

_BySlot = dict[int, Request]


class Decoding:
    """Running requests whose known tokens are all computed or planned: each decode step takes all of them.

    Nothing is counted for each of them in a step. A length is the slot's base + `steps`, the number of decode
    steps planned so far. So the step that plans a sequence's last token is known when it joins, and it needs
    a block at every block_size-th step: both are looked up, by the step and by its remainder. planned and
    computed of a request that is here are out of date.
    """

    def __init__(self, slots: Slots, block_size: int) -> None:
        self.steps = 0
        self._slots = slots
        self._block_size = block_size
        self._member = np.zeros(len(slots.owner), bool)
        self._kinds: Counter[Features] = Counter()
        self._by_remainder: list[_BySlot] = [{} for _ in range(block_size)]
        self._by_end: dict[int, _BySlot] = {}
        self._changed = False
        self._members = np.flatnonzero(self._member)
        self._longest_base = 0

    def __contains__(self, request: Request) -> bool:
        return request.slot >= 0 and bool(self._member[request.slot])

    @property
    def members(self) -> np.ndarray:
        """Their slots: int64, ascending, never written again."""
        if self._changed:
            self._changed = False
            self._members = np.flatnonzero(self._member)
            if len(self._members):
                self._longest_base = int(self._slots.base[self._members].max())
        return self._members

    @property
    def longest(self) -> int:
        """The most tokens that one of `members` has, once all planned steps have run."""
        return self._longest_base + self.steps

    @property
    def kinds(self) -> Collection[Features]:
        """What they ask of sampling, each kind once."""
        return self._kinds.keys()

    def length(self, request: Request) -> int:
        """Its tokens, once all planned steps have run."""
        return int(self._slots.base[request.slot]) + self.steps

    def join(self, request: Request) -> None:
        """Take in a request that has its first new token planned, unless it is its last one.

        It holds the blocks of all its tokens but that one.
        """
        slot = request.slot
        self._slots.base[slot] = base = request.planned - self.steps
        if request.planned == request.max_length:
            return
        self._member[slot] = self._changed = True
        self._kinds[request.features] += 1
        self._by_remainder[self._remainder(base)][slot] = request
        self._by_end.setdefault(request.max_length - base, {})[slot] = request

    def leave(self, request: Request) -> None:
        """Let a request go, whose counters are up to date from now on."""
        slot, base = request.slot, int(self._slots.base[request.slot])
        request.planned = base + self.steps
        request.computed = request.planned - 1
        self._member[slot] = False
        self._changed = True
        self._kinds[request.features] -= 1
        if not self._kinds[request.features]:
            del self._kinds[request.features]
        del self._by_remainder[self._remainder(base)][slot]
        del self._by_end[request.max_length - base][slot]

    def _remainder(self, base: int) -> int:
        """Of the steps that compute the first position of a block: there the length is a block's end + 1."""
        return (1 - base) % self._block_size

    def without_block(self) -> list[Request]:
        """Those of which the next step writes the first position of a block."""
        return list(self._by_remainder[self.steps % self._block_size].values())

    def filling(self) -> list[Request]:
        """Those of which the next step writes the last position of a block."""
        return list(self._by_remainder[(self.steps + 1) % self._block_size].values())

    def step(self) -> list[Request]:
        """Count a step of all; those that have their last token planned with it leave, and are returned."""
        self.steps += 1
        done = list(self._by_end.get(self.steps, {}).values())
        for request in done:
            self.leave(request)
        self._by_end.pop(self.steps, None)
        return done

    def check(self) -> None:
        """Assert that members, what is due and features agree."""
        members = set(self.members.tolist())
        due = [slot for at in self._by_remainder for slot in at]
        ends = [slot for at in self._by_end.values() for slot in at]
        assert sorted(due) == sorted(ends) == sorted(members)
        assert sum(self._kinds.values()) == len(members)
        for slot in members:
            request = self._slots.owner[slot]
            length = self.length(request)
            assert len(request.blocks) == -(-(length - 1) // self._block_size), "a block too few, or too many"
            assert request.slot in self._by_end[self.steps + request.max_length - length]
