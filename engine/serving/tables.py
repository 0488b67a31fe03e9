"""The device tables by slot: history, row and blocks of every sequence, in one flat tensor.

Because they are one tensor, all that a Plan changes is one list of (address, value) pairs, written at once.
"""

import numpy as np
import torch

from engine.config import EngineConfig
from engine.serving.plan import Plan
from engine.serving.slot_row import ROW_WORDS, column, columns, packed_row

# Kernels read faster what starts at a multiple of 16 bytes; 16 words are a multiple of any such unit.
_ALIGNMENT = 16


class Tables:
    """Views by slot: tokens (slots, max_model_len), block_table (slots, blocks), rows (slots, ROW_WORDS).

    There is one slot and one block more than the scheduler knows: what fills a batch up is computed for
    pad_slot, a finished sequence of one token, and its KV goes to the last block.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.block_size = config.block_size
        self.device = config.device
        self.pad_slot = config.max_num_seqs
        self._blocks = -(-config.max_model_len // config.block_size)
        self._length = config.max_model_len
        slots = config.max_num_seqs + 1
        self._blocks_at = aligned(slots * ROW_WORDS)
        self._tokens_at = self._blocks_at + aligned(slots * self._blocks)
        words = self._tokens_at + slots * self._length
        self._state = torch.zeros(words, dtype=torch.int64, device=config.device)

        def table(first: int, width: int) -> torch.Tensor:
            return self._state[first : first + slots * width].view(slots, width)

        self.rows = table(0, ROW_WORDS)
        self.block_table = table(self._blocks_at, self._blocks)
        self.tokens = table(self._tokens_at, self._length)
        self.length = column(self.rows, "length")
        self.columns = columns(self.rows)
        self.length[self.pad_slot] = 1
        column(self.rows, "finished")[self.pad_slot] = 1
        self.block_table[self.pad_slot] = config.num_blocks

    def changes(self, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
        """What the admissions and grants of a Plan write: addresses and values, each (n,) int64."""
        if not plan.admits and not len(plan.grants):
            return _NOTHING, _NOTHING
        runs = [(admit.slot * ROW_WORDS, packed_row(admit)) for admit in plan.admits]
        runs += [(self._tokens_at + admit.slot * self._length, admit.tokens) for admit in plan.admits]
        slots, indices, blocks = plan.grants.T
        granted_at = self._blocks_at + slots * self._blocks + indices
        if not runs:
            return granted_at, blocks
        lengths = np.array([len(values) for _, values in runs])
        ends = lengths.cumsum()
        starts = np.array([first for first, _ in runs])
        addresses = np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)
        values = [np.asarray(values, np.int64) for _, values in runs]
        return np.concatenate([addresses, granted_at]), np.concatenate([*values, blocks])

    def write(self, addresses: torch.Tensor, values: torch.Tensor) -> None:
        """Apply changes, already on the device."""
        self._state.index_copy_(0, addresses, values)


def aligned(words: int) -> int:
    """`words` rounded up to where the next table may start."""
    return -(-words // _ALIGNMENT) * _ALIGNMENT


_NOTHING = np.zeros(0, np.int64)
