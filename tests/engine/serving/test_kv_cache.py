"""The block pool alone: counts, sharing, eviction order, and prefixes that must not be confused."""

import pytest

from engine.serving.kv_cache import ROOT, BlockPool


def published(pool: BlockPool, tokens: list[int]) -> list[int]:
    blocks = pool.allocate(len(tokens) // pool.block_size)
    pool.publish(tokens, blocks, ROOT)
    return blocks


def test_block_zero_is_never_handed_out() -> None:
    pool = BlockPool(5, 4, prefix_cache=True)
    assert sorted(pool.allocate(4)) == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="1 blocks asked for, 0 free"):
        pool.allocate(1)


def test_a_released_prefix_is_found_until_its_blocks_are_reused() -> None:
    pool = BlockPool(6, 2, prefix_cache=True)
    tokens = [1, 2, 3, 4]
    blocks = published(pool, tokens)
    pool.release(blocks)
    assert pool.match([*tokens, 9])[0] == blocks
    pool.release(blocks)
    taken = pool.allocate(4)
    assert blocks[1] in taken and blocks[0] not in taken, "the end of a sequence goes before its beginning"
    found, _ = pool.match([*tokens, 9])
    assert found == blocks[:1]
    pool.check([taken, found])


def test_the_last_token_is_never_matched() -> None:
    pool = BlockPool(6, 2, prefix_cache=True)
    blocks = published(pool, [1, 2, 3, 4])
    assert pool.match([1, 2, 3, 4])[0] == blocks[:1]
    assert pool.match([1, 2])[0] == []


def test_equal_blocks_after_different_beginnings_stay_apart() -> None:
    pool = BlockPool(9, 2, prefix_cache=True)
    published(pool, [1, 1, 5, 5])
    second = published(pool, [2, 2, 5, 5])
    assert pool.match([2, 2, 5, 5, 0])[0] == second


def test_tokens_with_equal_python_hashes_do_not_share() -> None:
    """hash(-1) == hash(-2): a key compared by hash alone would confuse these prompts."""
    pool = BlockPool(9, 2, prefix_cache=True)
    published(pool, [-1, 7])
    assert pool.match([-2, 7, 0])[0] == []


def test_an_evicted_parent_does_not_lead_to_its_old_children() -> None:
    pool = BlockPool(4, 2, prefix_cache=True)
    parent, child = published(pool, [1, 2, 3, 4])
    pool.release([parent])
    reused = pool.allocate(2)
    assert parent in reused
    pool.publish([1, 2], [parent], ROOT)
    assert pool.match([1, 2, 3, 4, 5])[0] == [parent], "the child's KV was computed after another entry"
    pool.check([[*reused, child], [parent]])


def test_equal_content_is_published_once() -> None:
    pool = BlockPool(9, 2, prefix_cache=True)
    first = published(pool, [1, 2, 3, 4])
    again = published(pool, [1, 2, 3, 4])
    assert pool.match([1, 2, 3, 4, 5])[0] == first
    pool.release(first)
    pool.check([first, again])


def test_reset_forgets_prefixes_and_keeps_holds() -> None:
    pool = BlockPool(9, 2, prefix_cache=True)
    blocks = published(pool, [1, 2, 3, 4])
    pool.reset_prefix_cache()
    assert pool.match([1, 2, 3, 4, 5])[0] == []
    pool.check([blocks])


def test_switched_off_it_finds_nothing() -> None:
    pool = BlockPool(9, 2, prefix_cache=False)
    published(pool, [1, 2, 3, 4])
    assert pool.match([1, 2, 3, 4, 5])[0] == []


def test_check_notices_a_lost_hold_and_a_double_use() -> None:
    pool = BlockPool(5, 2, prefix_cache=True)
    blocks = pool.allocate(2)
    with pytest.raises(AssertionError, match="1 references, 0 holders"):
        pool.check([])
    with pytest.raises(AssertionError, match="1 references, 2 holders"):
        pool.check([blocks, blocks[:1]])
