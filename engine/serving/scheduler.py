"""Which tokens of which requests the next step computes. Pure Python: no torch, no clock, no I/O."""

import heapq
from collections import deque
from dataclasses import dataclass
from itertools import count

from engine.config import EngineConfig
from engine.serving.kv_cache import ROOT, BlockPool
from engine.serving.plan import Admit, Chunk, Decode, Features, Grant, Plan, RingRow
from engine.serving.request import Finish, Request, Update


@dataclass(frozen=True, slots=True)
class _Work:
    """One request's share of a queued step: positions start … computed-1."""

    request: Request
    start: int
    computed: int


class Scheduler:
    """Continuous batching under a token budget, with chunked prefill and recompute preemption.

    Requests run in order of (priority, arrival), smaller first. Each step takes one token of every
    decoding request and fills the rest of its budget with prompt chunks, whose blocks were all taken at
    admission; a preset that does not mix computes all prompts first, in steps of their own. When the pool
    is dry the last request in that order gives its blocks back and is computed again later; since the first
    one is never the victim of another, everything finishes. Decisions that need results wait until they are
    read.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.pool = BlockPool(config.num_blocks, config.block_size, config.prefix_cache)
        self.running: list[Request] = []
        self.preemptions = 0
        self._requests: dict[int, Request] = {}
        self._waiting: list[tuple[tuple[int, int], Request]] = []
        self._arrivals = count()
        self._free_slots = list(range(config.max_num_seqs - 1, -1, -1))
        self._queued: deque[list[_Work]] = deque()
        self._ended: list[Update] = []

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
            self._end(request, Update(request_id, [], Finish.CANCELLED, request.cached))

    def schedule(self) -> Plan | None:
        """The next step, or None when nothing can be planned before more results are read."""
        if self.config.preset.mixed:
            return self._plan(self.running, admitting=True)
        prompts = [request for request in self.running if _computes_prompt(request)]
        return self._plan(prompts, admitting=True) or self._plan(self.running, admitting=False)

    def _plan(self, candidates: list[Request], admitting: bool) -> Plan | None:
        """A step of these running requests, and of new ones where it admits."""
        budget = self.config.max_batched_tokens
        chosen: list[tuple[Request, int]] = []
        for request in sorted(candidates, key=lambda r: r.pending > 1):
            tokens = min(request.pending, budget)
            if tokens == 0 or request.slot < 0:
                continue
            while not self._reserve(request, request.computed + tokens):
                if self._queued:
                    return None
                if self._preempt_last() is request:
                    break
            else:
                chosen.append((request, tokens))
                budget -= tokens
        admitted = []
        while admitting and budget > 0 and (request := self._admit()):
            tokens = min(request.pending, budget)
            admitted.append(request)
            chosen.append((request, tokens))
            budget -= tokens
        return self._commit(chosen, admitted) if chosen else None

    def process(self, rows: list[RingRow]) -> list[Update]:
        """Apply the results of the oldest queued step; returns news for the requests it concerned."""
        results = {row.slot: row for row in rows}
        updates = []
        for work in self._queued.popleft():
            request = work.request
            request.in_flight -= 1
            if request.finish is Finish.NOT_YET:
                row = results.get(request.slot)
                news = self._apply(request, work, row) if row else None
                self._publish(request, work.computed)
                if news and news.finish is not Finish.NOT_YET:
                    self._end(request, news)
                elif news:
                    updates.append(news)
            if request.finish is not Finish.NOT_YET:
                self._retire(request)
        return updates + self.take_ended()

    def _apply(self, request: Request, work: _Work, row: RingRow) -> Update:
        """Take one ring row over into the request; what it means for whoever asked."""
        request.tokens += row.tokens
        # A prompt computed again after a preemption is reported once only.
        prompt = row.prompt_logprobs[max(0, request.reported - work.start) :]
        request.reported += len(prompt)
        finish = Finish.NOT_YET
        if row.broken:
            finish = Finish.BROKEN
        elif row.finished:
            finish = Finish.STOP if row.tokens[-1:] and row.tokens[-1] in request.stop_ids else Finish.LENGTH
        # A step reports for all its requests what one of them asked for.
        logprobs = row.logprobs if request.params.logprobs is not None else ()
        return Update(request.id, list(row.tokens), finish, request.cached, logprobs, prompt)

    def take_ended(self) -> list[Update]:
        """The terminal updates not handed out yet."""
        ended, self._ended = self._ended, []
        return ended

    def check(self) -> None:
        """Assert that every structure agrees with every other one."""
        self.pool.check(request.blocks for request in self._requests.values())
        slots = [request.slot for request in self._requests.values() if request.slot >= 0]
        assert len(set(slots)) == len(slots), "a slot has two requests"
        assert sorted(slots + self._free_slots) == list(range(self.config.max_num_seqs)), "a slot is lost"
        for request in self.running:
            assert len(request.tokens) <= request.planned <= request.max_length
            assert request.computed <= len(request.blocks) * self.config.block_size
            assert request.finish is Finish.NOT_YET
            assert request.in_flight or request.planned == len(request.tokens), "results were lost"

    def _reserve(self, request: Request, positions: int) -> bool:
        """See that the request holds blocks for `positions`; False when the pool has too few."""
        missing = self.pool.blocks_for(positions) - len(request.blocks)
        if missing > self.pool.free:
            return False
        if missing > 0:
            request.blocks += self.pool.allocate(missing)
        return True

    def _admit(self) -> Request | None:
        """Start the first waiting request if a slot is free and its known tokens fit beside the others.

        One block per running request is left free, so that admitting does not preempt at once.
        """
        while self._waiting and self._waiting[0][1].finish is not Finish.NOT_YET:
            heapq.heappop(self._waiting)
        if not self._waiting or not self._free_slots:
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
        request.slot = self._free_slots.pop()
        request.published, request.chain = len(reused), chain
        request.computed = len(reused) * self.config.block_size
        if request.planned == request.prompt_length:
            request.cached = request.computed
        self.running.append(request)
        self.running.sort(key=lambda r: r.order)
        return request

    def _prompt_wish(self, request: Request, start: int) -> int | None:
        """How many alternatives per prompt token a chunk from `start` reports; None for no report."""
        last = request.prompt_length - 1
        return request.params.prompt_logprobs if request.reported < last and start < last else None

    def _commit(self, chosen: list[tuple[Request, int]], admitted: list[Request]) -> Plan:
        admits = tuple(
            Admit(r.slot, tuple(r.tokens), r.prompt_length, r.params, r.stop_ids, r.max_length)
            for r in admitted
        )
        grants, decodes, chunks, decoding, prefilling = [], [], [], [], []
        for request, tokens in chosen:
            if fresh := request.blocks[request.granted :]:
                grants.append(Grant(request.slot, request.granted, tuple(fresh)))
                request.granted = len(request.blocks)
            start = request.computed
            request.computed += tokens
            samples = request.computed == request.planned
            work = _Work(request, start, request.computed)
            # The newest token may still be on the device only: a decode reads it there.
            if samples and tokens == 1 and request.planned > request.prompt_length:
                decodes.append(Decode(request.slot, request.computed))
                decoding.append(work)
            else:
                chunks.append(Chunk(request.slot, start, tokens, samples, self._prompt_wish(request, start)))
                prefilling.append(work)
            request.planned += samples
            request.in_flight += 1
        self._queued.append(decoding + prefilling)
        return Plan(
            admits=admits,
            grants=tuple(grants),
            decodes=tuple(decodes),
            chunks=tuple(chunks),
            features=Features.union(request.params for request, _ in chosen),
        )

    def _preempt_last(self) -> Request:
        """Take slot and blocks from the last running request; it waits again, in its old place."""
        request = self.running.pop()
        self._free(request)
        request.computed = 0
        self.preemptions += 1
        heapq.heappush(self._waiting, (request.order, request))
        return request

    def _publish(self, request: Request, written: int) -> None:
        """Offer the blocks that this step's results prove to be written to later requests."""
        full = min(written, len(request.tokens)) // self.config.block_size
        if full > request.published:
            blocks = request.blocks[:full]
            request.chain = self.pool.publish(request.tokens, blocks, request.published, request.chain)
            request.published = full

    def _end(self, request: Request, news: Update) -> None:
        request.finish = news.finish
        if request.slot >= 0:
            self.running.remove(request)
        self._ended.append(news)
        self._retire(request)

    def _retire(self, request: Request) -> None:
        """Forget an ended request once no queued step can write its blocks any more."""
        if request.in_flight == 0 and self._requests.pop(request.id, None):
            self._free(request)

    def _free(self, request: Request) -> None:
        if request.slot >= 0:
            self._free_slots.append(request.slot)
            request.slot = -1
        self.pool.release(request.blocks)
        request.blocks = []
        request.granted = request.published = request.chain = 0


def _computes_prompt(request: Request) -> bool:
    """Whether its next tokens are known ones, of the prompt or computed again, rather than its newest."""
    return request.pending > 1 or (request.pending == 1 and request.planned == request.prompt_length)
