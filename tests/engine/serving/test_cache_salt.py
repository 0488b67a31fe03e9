"""What the prefix cache shares and what not: salts, and the reset, from the pool to the engine."""

from engine.serving.kv_cache import ROOT, BlockPool
from engine.serving.request import Finish, SamplingParams
from tests.engine.serving.test_engine import make_engine, run

PROMPT = [7, 3, 9, 4, 1, 8, 2, 6, 5, 11, 12, 13]


def cached(engine: object, request_id: int, salt: str = "") -> int:
    """Prompt tokens that the engine found in its cache."""
    engine.add(request_id, PROMPT, SamplingParams(max_tokens=6, ignore_eos=True), cache_salt=salt)
    found = 0
    while engine.has_work:
        for update in engine.step():
            found = update.cached_tokens
        engine.check()
    return found


def test_chains_of_different_starts_share_nothing() -> None:
    pool = BlockPool(16, 2, prefix_cache=True)
    held = {}
    for start in (ROOT, "a", "b"):
        held[start] = pool.allocate(2)
        pool.publish([1, 2, 3, 4], held[start], start)
    for start, blocks in held.items():
        assert pool.match([1, 2, 3, 4, 5], start)[0] == blocks
    assert pool.match([1, 2, 3, 4, 5], "c") == ([], "c")
    pool.check([*held.values(), *held.values()])


def test_equal_prompts_share_only_under_equal_salts() -> None:
    engine = make_engine()
    assert cached(engine, 0) == 0
    assert cached(engine, 1, "a") == 0
    assert cached(engine, 2, "b") == 0
    assert [cached(engine, i, salt) for i, salt in ((3, ""), (4, "a"), (5, "b"))] == [8, 8, 8]


def test_salted_prompts_give_the_same_ids_also_when_preempted() -> None:
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    engine = make_engine(num_blocks=20)
    for i in range(6):
        engine.add(i, PROMPT, params, cache_salt=f"tenant {i % 3}")
    outcomes = run(engine)
    assert engine.scheduler.preemptions > 0
    assert len({tuple(ids) for ids, _ in outcomes.values()}) == 1
    assert {finish for _, finish in outcomes.values()} == {Finish.LENGTH}


def test_a_reset_forgets_also_while_requests_run() -> None:
    engine = make_engine()
    assert [cached(engine, 0), cached(engine, 1)] == [0, 8]
    engine.reset_prefix_cache()
    assert [cached(engine, 2), cached(engine, 3)] == [0, 8]
    engine.add(4, PROMPT, SamplingParams(max_tokens=20, ignore_eos=True))
    for _ in range(5):
        engine.step()
        engine.check()
    engine.reset_prefix_cache()
    run(engine)
    assert cached(engine, 5) == 0
    assert cached(engine, 6) == 8
