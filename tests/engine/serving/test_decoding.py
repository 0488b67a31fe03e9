"""What the scheduler looks up instead of counting: blocks and ends at every offset, at every moment."""

import random
from collections import Counter, deque
from collections.abc import Callable, Iterator

import pytest

from engine.serving.plan import Plan
from engine.serving.request import Finish, Request, Update
from engine.serving.scheduler import Scheduler
from tests.engine.serving.test_scheduler import Device, make_scheduler, request

DEPTHS = pytest.mark.parametrize("depth", [1, 2, 3, 5])


def expected(asked: Request) -> tuple[list[int], Finish]:
    """What the device gives a request that runs alone, and why it ends."""
    tokens = []
    for length in range(asked.prompt_length, asked.max_length):
        tokens.append(100 + length)
        if tokens[-1] in asked.stop_ids:
            return tokens, Finish.STOP
    return tokens, Finish.LENGTH


class Play:
    """Steps a scheduler, and keeps what was planned and told."""

    def __init__(self, scheduler: Scheduler, depth: int) -> None:
        self.scheduler = scheduler
        self.plans: list[Plan] = []
        self.told: dict[int, list[int]] = {}
        self.ends: dict[int, Finish] = {}
        self._depth, self._device = depth, Device(scheduler.config.block_size)
        self.queue: deque = deque()

    def steps(self) -> Iterator[int]:
        """Step until all is done: the number of each step before its results are read."""
        for step in range(5000):
            if not self.scheduler.has_work:
                return
            while len(self.queue) < self._depth and (plan := self.scheduler.schedule()):
                self.plans.append(plan)
                self.queue.append(self._device.run(plan))
            yield step
            self._hear(
                self.scheduler.process(self.queue.popleft()) if self.queue else self.scheduler.take_ended()
            )
            self.scheduler.check()
        raise AssertionError("it never ends")

    def _hear(self, news: Iterator[Update]) -> None:
        for update in news:
            assert update.request_id not in self.ends, "news after the end"
            self.told.setdefault(update.request_id, []).extend(update.token_ids)
            if update.finish is not Finish.NOT_YET:
                self.ends[update.request_id] = update.finish

    def to_the_end(self) -> None:
        for _ in self.steps():
            pass
        assert self.scheduler.pool.free == self.scheduler.pool.capacity

    def assert_right(self, asked: Request) -> None:
        assert (self.told[asked.id], self.ends[asked.id]) == expected(asked)


@DEPTHS
@pytest.mark.parametrize("block_size", [1, 2, 3, 4])
@pytest.mark.parametrize("prompt", range(1, 10))
def test_blocks_come_and_sequences_end_at_every_offset(block_size: int, prompt: int, depth: int) -> None:
    """Of four at a time; the device sees that each has its block in time, and none too early."""
    play = Play(make_scheduler(block_size=block_size, num_blocks=100), depth)
    every = [request(i, prompt, i + 1) for i in range(10)]
    for asked in every:
        play.scheduler.add(asked)
    play.to_the_end()
    for asked in every:
        play.assert_right(asked)
    decodes = sum(len(plan.decodes) for plan in play.plans)
    assert decodes == sum(asked.params.max_tokens - 1 for asked in every), "a step too many, or too few"


@DEPTHS
@pytest.mark.parametrize("block_size", [1, 2, 4])
def test_a_block_is_found_as_soon_as_the_results_of_its_last_position_are_read(
    block_size: int, depth: int
) -> None:
    for prompt in range(1, 7):
        play = Play(make_scheduler(block_size=block_size, num_blocks=40, max_batched_tokens=6), depth)
        asked, pool = request(0, prompt, 12), play.scheduler.pool
        play.scheduler.add(asked)
        for step in play.steps():
            if step > 0:
                known = [*range(prompt), *play.told[0]]
                found, _ = pool.match(known)
                pool.release(found)
                assert len(found) == (len(known) - 1) // block_size
        play.assert_right(asked)


def cancelled(scheduler: Scheduler) -> None:
    scheduler.cancel(1)


def neighbour_cancelled(scheduler: Scheduler) -> None:
    scheduler.cancel(0)


def newcomer(scheduler: Scheduler) -> None:
    scheduler.add(request(3, 6, 5))


@DEPTHS
@pytest.mark.parametrize("event", [cancelled, neighbour_cancelled, newcomer])
def test_an_event_at_every_moment_spares_the_others(event: Callable[[Scheduler], None], depth: int) -> None:
    for moment in range(16):
        play = Play(make_scheduler(num_blocks=40), depth)
        every = {i: request(i, 3 + 5 * i, 10 - i) for i in range(3)}
        for asked in every.values():
            play.scheduler.add(asked)
        for step in play.steps():
            if step == moment:
                event(play.scheduler)
        assert play.scheduler.pool.free == play.scheduler.pool.capacity
        for i, asked in every.items():
            if play.ends[i] is Finish.CANCELLED:
                assert play.told[i] == expected(asked)[0][: len(play.told[i])]
            else:
                play.assert_right(asked)


@DEPTHS
def test_a_stop_at_every_offset_ends_while_steps_are_queued(depth: int) -> None:
    for tokens in range(1, 12):
        play = Play(make_scheduler(num_blocks=40), depth)
        stops = request(0, 5, 14, stop_ids=(104 + tokens,))
        beside = [request(i, 3 + i, 12) for i in (1, 2)]
        for asked in (stops, *beside):
            play.scheduler.add(asked)
        for _ in play.steps():
            pass
        assert expected(stops)[1] is Finish.STOP
        for asked in (stops, *beside):
            play.assert_right(asked)


@DEPTHS
def test_preemption_at_every_size_of_the_pool(depth: int) -> None:
    preemptions = 0
    for num_blocks in range(8, 24):
        play = Play(make_scheduler(num_blocks=num_blocks), depth)
        every = [request(i, 4 + i, 16) for i in range(4)]
        for asked in every:
            play.scheduler.add(asked)
        play.to_the_end()
        preemptions += play.scheduler.preemptions
        for asked in every:
            play.assert_right(asked)
    assert preemptions > 10


@pytest.mark.parametrize("seed", range(150))
def test_random_requests_get_what_they_get_alone(seed: int) -> None:
    """Arrivals, lengths, stops, priorities, cancels, pools, budgets, block sizes and depths at random."""
    rng = random.Random(seed)
    block_size = rng.randint(1, 5)
    scheduler = make_scheduler(
        block_size=block_size,
        num_blocks=rng.randint(2 + -(-36 // block_size), 90 // block_size),
        max_batched_tokens=rng.randint(4, 20),
        prefix_cache=rng.random() < 0.7,
    )
    play = Play(scheduler, rng.randint(1, 5))
    todo = [
        request(
            i, rng.randint(1, 16), rng.randint(1, 20), rng.randint(0, 2),
            stop_ids=(rng.randint(101, 130),) if rng.random() < 0.5 else (),
        )
        for i in range(20)
    ]  # fmt: skip
    every, cancels = list(todo), set()
    scheduler.add(todo.pop())
    for _ in play.steps():
        while todo and (rng.random() < 0.4 or len(play.ends) == 20 - len(todo)):
            scheduler.add(todo.pop())
        if rng.random() < 0.05:
            cancels.add(victim := rng.randrange(20))
            scheduler.cancel(victim)
    while todo:  # the last ones came when all others had ended
        scheduler.add(todo.pop())
    play.to_the_end()
    for asked in every:
        if play.ends[asked.id] is Finish.CANCELLED:
            assert asked.id in cancels
            got = play.told[asked.id]
            assert got == expected(asked)[0][: len(got)]
        else:
            play.assert_right(asked)
    for plan in play.plans:
        rows = len(plan.decodes) + sum(chunk.count for chunk in plan.chunks)
        assert 0 < rows <= scheduler.config.max_batched_tokens
        named = Counter([*plan.decodes.tolist(), *(chunk.slot for chunk in plan.chunks)])
        assert max(named.values()) == 1, "a step names a slot twice"
