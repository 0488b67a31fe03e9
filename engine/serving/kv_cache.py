"""The block pool: who holds which KV block, and which blocks hold a known prefix."""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice

ROOT = 0
Entry = int | str
"""What a block comes after: a published block's number, or where a chain starts, ROOT or a salt."""


class BlockPool:
    """Reference-counted KV blocks of `block_size` positions, with an index of reusable prefixes.

    Block 0 is never handed out and stays zero: what a row must not see is read from there. A full block
    whose KV has been written is published under (the entry before it, its token ids): the key is compared
    token for token, so that equal hashes cannot share KV. Blocks nobody holds keep their content until they
    are reused, least recently released first; the last block of a sequence goes before the first.
    """

    def __init__(self, num_blocks: int, block_size: int, prefix_cache: bool) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_cache = prefix_cache
        self._references = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._index: dict[tuple[Entry, tuple[int, ...]], tuple[int, int]] = {}
        self._key_of_block: dict[int, tuple[Entry, tuple[int, ...]]] = {}
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

    def match(self, tokens: Sequence[int], start: Entry = ROOT) -> tuple[list[int], Entry]:
        """The longest published prefix of `tokens`: its blocks, each held once more, and the last entry.

        start: where the chain starts; chains of different starts share nothing. At least one token is left
        over: a step needs something to compute.
        """
        blocks: list[int] = []
        entry = start
        for at in range(0, len(tokens) - self.block_size, self.block_size):
            found = self._index.get((entry, tuple(tokens[at : at + self.block_size])))
            if found is None:
                break
            block, entry = found
            blocks.append(block)
        for block in blocks:
            if self._references[block] == 0:
                del self._free[block]
            self._references[block] += 1
        return blocks, entry

    def publish(self, tokens: Sequence[int], blocks: Sequence[int], first: int, entry: Entry) -> Entry:
        """Make blocks[first:] findable: full blocks of `tokens` whose KV is written, after `entry`.

        Returns the last entry, to go on from. Where equal content is known already, that one stays.
        """
        if not self.prefix_cache:
            return entry
        for i in range(first, len(blocks)):
            key = (entry, tuple(tokens[i * self.block_size : (i + 1) * self.block_size]))
            known = self._index.get(key)
            if known is None:
                known = (blocks[i], self._next_entry)
                self._next_entry += 1
                self._index[key] = known
                self._key_of_block[blocks[i]] = key
            entry = known[1]
        return entry

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
