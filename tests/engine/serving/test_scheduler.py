"""The scheduler alone, against a device of plain Python: no torch here."""

import random
from collections import deque

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.serving.plan import Admit, Plan, Results
from engine.serving.request import Finish, Request, SamplingParams, Update
from engine.serving.scheduler import Scheduler


def make_scheduler(**changes: object) -> Scheduler:
    values: dict[str, object] = dict(
        device="cpu", dtype="float32", max_model_len=64, num_blocks=12, block_size=4, max_num_seqs=4,
        max_batched_tokens=8, prefix_cache=True,
    )  # fmt: skip
    return Scheduler(EngineConfig(**(values | changes)))


class Device:
    """Follows Plans: every sequence gets the tokens 100 + its length, until a stop id or its greatest length.

    Knows of each KV place the tokens it was computed from, and that a step reads what it needs there.
    """

    def __init__(self, block_size: int = 4) -> None:
        self.block_size = block_size
        self.admits: dict[int, Admit] = {}
        self.tokens: dict[int, list[int]] = {}
        self.over: dict[int, bool] = {}
        self.blocks: dict[int, list[int]] = {}
        self.kv: dict[tuple[int, int], tuple[int, ...]] = {}

    def run(self, plan: Plan) -> Results:
        for admit in plan.admits:
            self.admits[admit.slot], self.tokens[admit.slot] = admit, admit.tokens.tolist()
            self.over[admit.slot], self.blocks[admit.slot] = False, []
        for slot, index, block in plan.grants.tolist():
            assert index == len(self.blocks[slot]), "a grant leaves a gap"
            self.blocks[slot].append(block)
        for slot in plan.decodes.tolist():
            length = len(self.tokens[slot])
            assert length <= plan.longest_decode
            unused = len(self.blocks[slot]) - -(-length // self.block_size)
            assert unused == 0 or (unused > 0 and self.over[slot]), "a block too few, or too many"
            self._compute(slot, length - 1, length)
        for chunk in plan.chunks:
            self._compute(chunk.slot, chunk.start, chunk.start + chunk.count)
        rows = [self._emit(slot) for slot in plan.sampled_slots.tolist()]
        return Results(np.array(rows, np.int64).reshape(-1, 4))

    def _compute(self, slot: int, first: int, end: int) -> None:
        known = tuple(self.tokens[slot][:end])
        assert len(known) == end, "tokens that are not known"
        places = [(self.blocks[slot][at // self.block_size], at % self.block_size) for at in range(end)]
        for at in range(end):
            if at < first:
                assert self.kv.get(places[at]) == known[: at + 1], "not the KV of this prefix"
            else:
                self.kv[places[at]] = known[: at + 1]

    def _emit(self, slot: int) -> tuple[int, int, int, int]:
        if self.over[slot]:
            return 0, 0, 1, 0
        tokens, admit = self.tokens[slot], self.admits[slot]
        tokens.append(100 + len(tokens))
        self.over[slot] = len(tokens) == admit.max_length or tokens[-1] in admit.stop_ids
        return 1, tokens[-1], self.over[slot], 0


def request(
    request_id: int, prompt: int, max_tokens: int, priority: int = 0, stop_ids: tuple[int, ...] = ()
) -> Request:
    return Request(
        request_id,
        np.arange(prompt, dtype=np.int32),
        SamplingParams(max_tokens=max_tokens),
        stop_ids,
        prompt + max_tokens,
        priority,
    )


def drive(scheduler: Scheduler, depth: int) -> list[Update]:
    device, queue, news = Device(scheduler.config.block_size), deque(), []
    while scheduler.has_work:
        while len(queue) < depth and (plan := scheduler.schedule()):
            queue.append(device.run(plan))
        assert queue or not scheduler.running, "nothing planned, nothing queued, yet requests run"
        news += scheduler.process(queue.popleft()) if queue else scheduler.take_ended()
        scheduler.check()
    return news


def test_a_long_prompt_is_cut_and_decodes_go_first() -> None:
    scheduler = make_scheduler(num_blocks=20)
    device = Device()
    scheduler.add(request(0, 3, 5))
    scheduler.process(device.run(scheduler.schedule()))
    scheduler.add(request(1, 20, 2))
    plans = []
    while scheduler.has_work:
        plan = scheduler.schedule()
        plans.append(plan)
        scheduler.process(device.run(plan))
    assert [(len(p.decodes), [c.count for c in p.chunks]) for p in plans[:3]] == [
        (1, [7]),
        (1, [7]),
        (1, [6]),
    ]
    assert [c.sample for p in plans[:3] for c in p.chunks] == [False, False, True]


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_slots_and_blocks_stay_held_while_a_queued_step_names_them(depth: int) -> None:
    scheduler = make_scheduler()
    device = Device()
    scheduler.add(request(0, 4, 30))
    queue = deque(device.run(scheduler.schedule()) for _ in range(depth))
    used = scheduler.pool.capacity - scheduler.pool.free
    scheduler.cancel(0)
    for remaining in range(depth, 0, -1):
        assert scheduler.pool.capacity - scheduler.pool.free == used, f"{remaining} steps still write there"
        scheduler.process(queue.popleft())
    assert scheduler.pool.free == scheduler.pool.capacity
    assert not scheduler.has_work


def test_nothing_is_planned_past_max_tokens() -> None:
    scheduler = make_scheduler()
    device = Device()
    scheduler.add(request(0, 4, 3))
    plans = []
    while plan := scheduler.schedule():
        plans.append(device.run(plan))
    assert len(plans) == 3


def test_preemption_waits_for_queued_results_and_takes_the_last_arrival() -> None:
    scheduler = make_scheduler(num_blocks=7, prefix_cache=False)
    news = []
    for i in range(2):
        scheduler.add(request(i, 8, 12))
    news = drive(scheduler, depth=3)
    assert scheduler.preemptions >= 1
    ends = [u.request_id for u in news if u.finish is not Finish.NOT_YET]
    assert ends == [0, 1], "the first arrival is never the victim of a later one"


def test_a_prefix_is_found_only_after_the_results_of_its_step_were_read() -> None:
    scheduler = make_scheduler(max_batched_tokens=32, num_blocks=20)
    device = Device()
    scheduler.add(request(0, 9, 2))
    rows = device.run(scheduler.schedule())
    scheduler.add(request(1, 9, 2))
    early = scheduler.schedule()
    assert [chunk.start for chunk in early.chunks] == [0], "KV that may not be written yet was shared"
    scheduler.process(rows)
    scheduler.process(device.run(early))
    scheduler.add(request(2, 9, 2))
    late = scheduler.schedule()
    assert [chunk.start for chunk in late.chunks] == [8]


def test_a_request_that_waits_can_be_cancelled() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    for i in range(3):
        scheduler.add(request(i, 4, 4))
    scheduler.cancel(1)
    news = drive(scheduler, depth=1)
    assert [(u.request_id, u.finish) for u in news if u.finish] == [
        (1, Finish.CANCELLED), (0, Finish.LENGTH), (2, Finish.LENGTH),
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_random_loads_finish_and_every_token_arrives_once(seed: int) -> None:
    """Random lengths, priorities, pool sizes, budgets, depths and cancels; integrity after each step."""
    rng = random.Random(seed)
    scheduler = make_scheduler(
        num_blocks=rng.randint(10, 30),
        max_batched_tokens=rng.randint(4, 16),
        prefix_cache=rng.random() < 0.5,
    )
    depth, device, queue = rng.randint(1, 4), Device(), deque()
    todo = [request(i, rng.randint(1, 16), rng.randint(1, 20), rng.randint(0, 2)) for i in range(20)]
    wanted = {r.id: r.params.max_tokens for r in todo}
    got: dict[int, list[int]] = {r.id: [] for r in todo}
    ends: dict[int, Finish] = {}
    cancelled: set[int] = set()
    for _ in range(5000):
        if todo and rng.random() < 0.4:
            scheduler.add(todo.pop())
        if rng.random() < 0.03:
            cancelled.add(victim := rng.randrange(20))
            scheduler.cancel(victim)
        while len(queue) < depth and (plan := scheduler.schedule()):
            queue.append(device.run(plan))
        for update in scheduler.process(queue.popleft()) if queue else scheduler.take_ended():
            assert update.request_id not in ends
            got[update.request_id] += update.token_ids
            if update.finish is not Finish.NOT_YET:
                ends[update.request_id] = update.finish
        scheduler.check()
        if not todo and not scheduler.has_work:
            break
    assert set(ends) == set(wanted), "some request never ended"
    assert scheduler.pool.free == scheduler.pool.capacity
    for i, finish in ends.items():
        assert finish is Finish.LENGTH or (i in cancelled and finish is Finish.CANCELLED)
        if finish is Finish.LENGTH:
            assert len(got[i]) == wanted[i]
            assert got[i] == list(range(got[i][0], got[i][0] + wanted[i])), "a token was lost or doubled"
