"""The block pool: who holds which KV block, and which blocks hold a known prefix."""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np

ROOT = 0
Entry = int | str
"""What a block comes after: a published block's number, or where a chain starts, ROOT or a salt."""
Key = tuple[Entry, bytes]


class BlockPool:
    """Reference-counted KV blocks of `block_size` positions, with an index of reusable prefixes.

    Block 0 is never handed out and stays zero: what a row must not see is read from there. A full block
    whose KV has been written is published under (the entry before it, its token ids as int32): the key is
    compared token for token, so that equal hashes cannot share KV. Blocks nobody holds keep their content
    until they are reused, least recently released first; the last block of a sequence goes before the first.
    """

    def __init__(self, num_blocks: int, block_size: int, prefix_cache: bool) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_cache = prefix_cache
        self._references = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._index: dict[Key, tuple[int, int]] = {}
        self._key_of_block: dict[int, Key] = {}
        self._next_entry = ROOT + 1

    @property
    def capacity(self) -> int:
        """Blocks that can be held at once."""
        return self.num_blocks - 1

    @property
    def free(self) -> int:
        return len(self._free)

    def blocks_for(self, positions: int) -> int:
        return -(-positions // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """`count` blocks, each held once by the caller. Raises ValueError when fewer are free."""
        if count > self.free:
            raise ValueError(f"{count} blocks asked for, {self.free} free")
        blocks = list(islice(self._free, count))
        for block in blocks:
            del self._free[block]
            self._references[block] = 1
            if key := self._key_of_block.pop(block, None):
                del self._index[key]
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """Give up one hold on each block."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free[block] = None

    def match(self, tokens: Sequence[int] | np.ndarray, start: Entry = ROOT) -> tuple[list[int], Entry]:
        """The longest published prefix of `tokens`: its blocks, each held once more, and the last entry.

        start: where the chain starts; chains of different starts share nothing. At least one token is left
        over: a step needs something to compute.
        """
        blocks: list[int] = []
        entry = start
        for content in self._contents(tokens)[: max(0, len(tokens) - 1) // self.block_size]:
            found = self._index.get((entry, content))
            if found is None:
                break
            block, entry = found
            blocks.append(block)
        for block in blocks:
            if self._references[block] == 0:
                del self._free[block]
            self._references[block] += 1
        return blocks, entry

    def publish(self, tokens: Sequence[int] | np.ndarray, blocks: Sequence[int], entry: Entry) -> Entry:
        """Make blocks findable that follow `entry`: full ones of `tokens`, whose KV is written.

        Returns the last entry, to go on from. Where equal content is known already, that one stays.
        """
        if not self.prefix_cache:
            return entry
        for block, content in zip(blocks, self._contents(tokens), strict=True):
            key = (entry, content)
            known = self._index.get(key)
            if known is None:
                known = (block, self._next_entry)
                self._next_entry += 1
                self._index[key] = known
                self._key_of_block[block] = key
            entry = known[1]
        return entry

    def _contents(self, tokens: Sequence[int] | np.ndarray) -> list[bytes]:
        """The tokens of each full block."""
        data, size = np.asarray(tokens, np.int32).tobytes(), 4 * self.block_size
        return [data[at : at + size] for at in range(0, len(data) - size + 1, size)]

    def reset_prefix_cache(self) -> None:
        """Forget every published prefix; blocks in use stay in use."""
        self._index.clear()
        self._key_of_block.clear()

    def check(self, held: Iterable[Sequence[int]]) -> None:
        """Assert that the pool agrees with its holders: reference counts equal, free + used = all."""
        holds = Counter(block for blocks in held for block in blocks)
        for block in range(1, self.num_blocks):
            references = self._references[block]
            assert references == holds[block], (
                f"block {block}: {references} references, {holds[block]} holders"
            )
            assert (block in self._free) == (references == 0), f"block {block} free and held at once"
        assert holds[0] == 0 and 0 not in self._free, "block 0 was handed out"
        for key, (block, _) in self._index.items():
            assert self._key_of_block.get(block) == key, f"block {block} indexed under a stale key"
