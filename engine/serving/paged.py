"""Inputs of a paged step: packed on the host, carried over in one copy, read on the device."""

import numpy as np
import torch

from engine.config import EngineConfig
from engine.kernels.row_inputs import row_inputs
from engine.model.batch import PagedBatch
from engine.serving.plan import Plan
from engine.serving.staging import Staging
from engine.serving.step_inputs import Shape, StepInputs, pack
from engine.serving.tables import Tables

# Changed words of the tables that travel with the inputs of a step: prompts of the default token budget
# many times over. More come with hits of long prefixes, and go ahead of the step in a copy of their own.
_CHANGES = 1 << 16


class PagedInputs:
    """One device buffer at a fixed address that all steps read their inputs from, and staging for each.

    Steps run in stream order, so one buffer is enough: the copy for a step waits for the step before.
    """

    def __init__(self, config: EngineConfig, tables: Tables, longest_item: int, kv_heads: int) -> None:
        self._tables = tables
        arrivals = config.max_num_seqs * kv_heads
        self._arrivals = torch.zeros(arrivals, dtype=torch.int32, device=config.device)
        self._longest_item = longest_item
        rows = config.max_batched_tokens
        largest = Shape(rows, rows, config.max_num_seqs, longest_item)
        words = largest.words + 2 * _CHANGES
        self._buffer = torch.zeros(words, dtype=torch.int64, device=config.device)
        self._idle = [Staging(words, largest.samples, config.device) for _ in range(config.queue_depth)]

    def exact(self, plan: Plan) -> Shape:
        """The shape of a step that is not padded."""
        return Shape.of(plan, self._longest_item)

    def send(self, plan: Plan, shape: Shape) -> Staging:
        """Queue the Plan's inputs, padded to `shape`, and its changes of the tables.

        The staging returned is the step's until it is given back.
        """
        staging = self._idle.pop()
        pack(plan, shape, self._tables.pad_slot, staging.words)
        addresses, values = self._tables.changes(plan)
        if (count := len(addresses)) > _CHANGES:
            self._tables.write(self._carried(addresses), self._carried(values))
            count = 0
        first, middle, last = shape.words, shape.words + count, shape.words + 2 * count
        if count:
            staging.words[first:middle], staging.words[middle:last] = addresses, values
        self._buffer.narrow(0, 0, last).copy_(staging.sent.narrow(0, 0, last), non_blocking=True)
        if count:
            self._tables.write(self._buffer[first:middle], self._buffer[middle:last])
        return staging

    def _carried(self, values: np.ndarray) -> torch.Tensor:
        host = torch.from_numpy(values)
        return host.pin_memory().to("cuda", non_blocking=True) if self._buffer.is_cuda else host

    def give_back(self, staging: Staging) -> None:
        """Take the staging of a step whose results have been read."""
        self._idle.append(staging)

    def clear(self, shape: Shape) -> None:
        """Make the inputs on the device those of a step without effect."""
        StepInputs.of(self._buffer, shape).clear(self._tables.pad_slot)

    def batch(self, shape: Shape) -> tuple[PagedBatch, torch.Tensor, torch.Tensor]:
        """The batch, which of its rows are sampled, and the slots those belong to; padded rows included."""
        inputs = StepInputs.of(self._buffer, shape)
        tables = self._tables
        # A finished slot's queued steps write its newest token's KV again, into blocks it still holds.
        tokens, positions, kv_slots = row_inputs(
            inputs.slots, inputs.places, tables.length, tables.tokens, tables.block_table, tables.block_size
        )
        batch = PagedBatch(
            tokens=tokens,
            positions=positions,
            kv_slots=kv_slots,
            slots=inputs.slots,
            items=inputs.items.view(torch.int32).view(-1, 2),
            longest_item=shape.longest_item,
            block_table=tables.block_table,
            block_size=tables.block_size,
            arrivals=self._arrivals,
        )
        return batch, inputs.sample_rows, inputs.sample_slots
