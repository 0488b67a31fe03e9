"""Which tokens of which requests the next step computes. No torch, no clock, no I/O."""

import heapq
from bisect import bisect_left, insort
from collections import deque
from itertools import count

import numpy as np

from engine.config import EngineConfig
from engine.serving.decoding import Decoding
from engine.serving.kv_cache import ROOT, BlockPool
from engine.serving.news import News, listed
from engine.serving.plan import Admit, Chunk, Plan, Results
from engine.serving.request import Features, Finish, Request, Update
from engine.serving.results import ChunkWork, QueuedStep, read
from engine.serving.slots import Slots

_NOBODY = np.zeros(0, np.int64)
_NO_GRANTS = np.zeros((0, 3), np.int64)


class Scheduler:
    """Continuous batching under a token budget, with chunked prefill and recompute preemption.

    Requests run in order of (priority, arrival), smaller first. Each step takes one token of every
    decoding request and fills the rest of its budget with prompt chunks, whose blocks were all taken at
    admission; a preset that does not mix computes all prompts first, in steps of their own. When the pool
    is dry the last request in that order gives its blocks back and is computed again later; since the first
    one is never the victim of another, everything finishes. Decisions that need results wait until they are
    read.

    A running request computes known tokens in chunks (`_prefilling`), then decodes (`_decoding`) until its
    last token is planned, then only waits for results.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.pool = BlockPool(config.num_blocks, config.block_size, config.prefix_cache)
        self.running: list[Request] = []
        self.preemptions = 0
        self._requests: dict[int, Request] = {}
        self._waiting: list[tuple[tuple[int, int], Request]] = []
        self._arrivals = count()
        self._slots = Slots(config.max_num_seqs, config.max_model_len)
        self._prefilling: list[Request] = []
        self._decoding = Decoding(self._slots, config.block_size)
        self._grants: list[tuple[int, int, int]] = []  # of the Plan that is being made
        self._queued: deque[QueuedStep] = deque()
        self._read_steps = self._last_decode_step = 0
        self._ended: list[Update] = []
        self._named: list[Request] = []  # ended, but a queued step names them

    @property
    def waiting(self) -> int:
        """Requests without a slot, and ended ones that queued steps still name."""
        return len(self._requests) - len(self.running)

    @property
    def has_work(self) -> bool:
        return bool(self._requests or self._ended)

    def add(self, request: Request) -> None:
        """Queue a request. Engine.add has checked that it fits the limits."""
        request.order = (request.priority, next(self._arrivals))
        self._requests[request.id] = request
        heapq.heappush(self._waiting, (request.order, request))

    def cancel(self, request_id: int) -> None:
        """End a request now; unknown and ended ones are ignored, for a cancel may cross the last result."""
        if (request := self._requests.get(request_id)) and request.finish is Finish.NOT_YET:
            self._ended.append(Update(request_id, [], Finish.CANCELLED, request.cached))
            self._end(request, Finish.CANCELLED)

    def schedule(self) -> Plan | None:
        """The next step, or None when nothing can be planned before more results are read."""
        if self.config.preset.mixed:
            return self._plan(decoding=True, prompts=True)
        return self._plan(decoding=False, prompts=True) or self._plan(decoding=True, prompts=False)

    def _plan(self, decoding: bool, prompts: bool) -> Plan | None:
        """A step of what decodes, of what computes known tokens, or of both, new requests included."""
        if decoding and not self._reserve():
            return None
        # One token of each fits: the budget is at least the number of slots.
        decodes = self._decoding.members if decoding else _NOBODY
        budget = self.config.max_batched_tokens - len(decodes)
        chosen: list[tuple[Request, int]] = []
        admitted: list[Request] = []
        if prompts:
            for request in sorted(self._prefilling, key=lambda r: r.planned - r.computed > 1):
                tokens = min(request.planned - request.computed, budget)
                if tokens > 0:
                    chosen.append((request, tokens))
                    budget -= tokens
            while budget > 0 and (request := self._admit()):
                tokens = min(request.planned - request.computed, budget)
                admitted.append(request)
                chosen.append((request, tokens))
                budget -= tokens
        return self._commit(decodes, chosen, admitted) if len(decodes) or chosen else None

    def _reserve(self) -> bool:
        """Give each sequence that decodes past its last block a new one; False to wait for results."""
        while len(lacking := self._decoding.without_block()) > self.pool.free:
            if self._queued:
                return False
            self._preempt_last()
        if lacking:
            for request, block in zip(lacking, self.pool.allocate(len(lacking)), strict=True):
                self._grants.append((request.slot, len(request.blocks), block))
                request.blocks.append(block)
        return True

    def _admit(self) -> Request | None:
        """Start the first waiting request if a slot is free and its known tokens fit beside the others.

        One block per running request is left free, so that admitting does not preempt at once.
        """
        while self._waiting and self._waiting[0][1].finish is not Finish.NOT_YET:
            heapq.heappop(self._waiting)
        if not self._waiting or not self._slots.free:
            return None
        request = self._waiting[0][1]
        # Log probabilities of a prompt have to be computed, whoever knows its KV.
        wish = self._prompt_wish(request, 0) is not None
        reused, chain = self.pool.match(request.tokens if not wish else (), request.cache_salt or ROOT)
        needed = self.pool.blocks_for(len(request.tokens)) - len(reused)
        if needed + len(self.running) > self.pool.free:
            self.pool.release(reused)
            return None
        heapq.heappop(self._waiting)
        request.blocks = reused + self.pool.allocate(needed)
        request.published, request.chain = len(reused), chain
        request.computed = len(reused) * self.config.block_size
        if request.planned == request.prompt_length:
            request.cached = request.computed
        self._slots.take(request)
        self._grants += [(request.slot, index, block) for index, block in enumerate(request.blocks)]
        insort(self.running, request, key=_order)
        insort(self._prefilling, request, key=_order)
        return request

    def _prompt_wish(self, request: Request, start: int) -> int | None:
        """How many alternatives per prompt token a chunk from `start` reports; None for no report."""
        last = request.prompt_length - 1
        return request.params.prompt_logprobs if request.reported < last and start < last else None

    def _commit(
        self, decodes: np.ndarray, chosen: list[tuple[Request, int]], admitted: list[Request]
    ) -> Plan:
        admits = tuple(
            Admit(r.slot, r.tokens, r.prompt_length, r.params, r.stop_ids, r.max_length) for r in admitted
        )
        number = self._read_steps + len(self._queued) + 1
        kinds = {request.features for request, _ in chosen}
        filling: list[Request] = []
        longest = 0
        if len(decodes):
            kinds |= self._decoding.kinds
            longest = self._decoding.longest
            filling = self._decoding.filling()
            self._last_decode_step = number
            for request in self._decoding.step():
                request.last_step = number
        works = [self._take_chunk(request, tokens, number) for request, tokens in chosen]
        plan = Plan(
            admits=admits,
            grants=np.array(self._grants, np.int64) if self._grants else _NO_GRANTS,
            decodes=decodes,
            longest_decode=longest,
            chunks=tuple(chunk for _, chunk in works),
            features=Features.union(kinds),
        )
        self._grants.clear()
        step = QueuedStep(plan.sampled_slots, self._decoding.steps, filling, [work for work, _ in works])
        self._queued.append(step)
        return plan

    def _take_chunk(self, request: Request, tokens: int, number: int) -> tuple[ChunkWork, Chunk]:
        """Plan its next known tokens; after the last one it samples, and decodes from then on."""
        start = request.computed
        request.computed += tokens
        request.last_step = number
        samples = request.computed == request.planned
        chunk = Chunk(request.slot, start, tokens, samples, self._prompt_wish(request, start))
        if samples:
            request.planned += 1
            self._prefilling.remove(request)
            self._decoding.join(request)
        return ChunkWork(request, start, request.computed), chunk

    def process(self, results: Results) -> News:
        """Apply the results of the oldest queued step; returns news of the requests it concerned."""
        step = self._queued.popleft()
        self._read_steps += 1
        news, over = read(step, results, self._slots)
        self._publish_written(step)
        for request, finish in over:
            self._end(request, finish)
        if self._named:
            self._named = [request for request in self._named if not self._retired(request)]
        return listed([news, self.take_ended()]) if self._ended else news

    def take_ended(self) -> News:
        """The ends not handed out yet."""
        ended, self._ended = self._ended, []
        return News.of(ended)

    def check(self) -> None:
        """Assert that every structure agrees with every other one."""
        self.pool.check(request.blocks for request in self._requests.values())
        self._slots.check(self._requests.values())
        self._decoding.check()
        ending = 0
        for request in self.running:
            assert request.finish is Finish.NOT_YET and self._slots.live[request.slot]
            decodes = request in self._decoding
            length = self._decoding.length(request) if decodes else request.planned
            assert len(request.tokens) <= length <= request.max_length
            computed = length - 1 if decodes else request.computed
            assert self.pool.blocks_for(computed) <= len(request.blocks)
            ending += not decodes and request not in self._prefilling
        assert self.running == sorted(self.running, key=_order)
        assert len(self._prefilling) + len(self._decoding.members) + ending == len(self.running)
        assert self._queued or not ending, "results were lost"
        assert self._queued or not self._named, "an ended request was not freed"

    def _preempt_last(self) -> None:
        """Take slot and blocks from the last running request; it waits again, in its old place."""
        request = self.running[-1]
        self._stop(request)
        request.tokens = self._slots.history[request.slot, : request.planned].copy()
        self._free(request)
        request.computed = 0
        self.preemptions += 1
        heapq.heappush(self._waiting, (request.order, request))

    def _publish_written(self, step: QueuedStep) -> None:
        """Offer the blocks that this step's results prove to be written to later requests."""
        for request in step.filling:
            self._publish(request, int(self._slots.base[request.slot]) + step.decode_steps - 1)
        for work in step.chunks:
            self._publish(work.request, work.computed)

    def _publish(self, request: Request, written: int) -> None:
        first, full = request.published, written // self.config.block_size
        if request.finish is not Finish.NOT_YET or full <= first:
            return
        size = self.config.block_size
        tokens = self._slots.history[request.slot, first * size : full * size]
        request.chain = self.pool.publish(tokens, request.blocks[first:full], request.chain)
        request.published = full

    def _end(self, request: Request, finish: Finish) -> None:
        request.finish = finish
        if request.slot >= 0:
            self._stop(request)
            self._slots.live[request.slot] = False
        if not self._retired(request):
            self._named.append(request)

    def _stop(self, request: Request) -> None:
        """Plan no more steps of a running request."""
        _remove(self.running, request)
        if request in self._decoding:
            self._decoding.leave(request)
            request.last_step = max(request.last_step, self._last_decode_step)
        elif request.computed < len(request.tokens):
            _remove(self._prefilling, request)

    def _retired(self, request: Request) -> bool:
        """Forget an ended request once no queued step can write its blocks any more; False until then."""
        if request.last_step > self._read_steps:
            return False
        del self._requests[request.id]
        self._free(request)
        return True

    def _free(self, request: Request) -> None:
        if request.slot >= 0:
            self._slots.give_back(request)
        self.pool.release(request.blocks)
        request.blocks = []
        request.published = request.chain = 0


def _order(request: Request) -> tuple[int, int]:
    return request.order


def _remove(ordered: list[Request], request: Request) -> None:
    del ordered[bisect_left(ordered, request.order, key=_order)]
