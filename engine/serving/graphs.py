"""Greedy decode steps as CUDA graphs: one launch instead of some hundred.

Everything such a step reads lies at fixed addresses (the device tables, by slot), so a graph is captured once
per padded batch size and history length and replayed with other slots.
"""

from collections.abc import Callable

import torch

# Between powers of two half-way sizes, so that a padded batch is at most a third larger than asked for.
_BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_SHORTEST_HISTORY = 256
# What one layer may gather of K and V in a captured step; larger steps run eagerly.
_GATHER_BYTES = 512 << 20


def batch_sizes(max_num_seqs: int) -> list[int]:
    """Captured batch sizes; the largest covers every batch."""
    return [size for size in _BATCHES if size < max_num_seqs] + [max_num_seqs]


def history_lengths(max_model_len: int) -> list[int]:
    """Captured history lengths: doubling, and the longest there can be."""
    lengths = []
    length = _SHORTEST_HISTORY
    while length < max_model_len:
        lengths.append(length)
        length *= 2
    return [*lengths, max_model_len]


class DecodeGraphs:
    """Captured steps by (batch, history length); their memory is one shared pool."""

    def __init__(
        self,
        step: Callable[[torch.Tensor, int], torch.Tensor],
        max_num_seqs: int,
        max_model_len: int,
        pad_slot: int,
        position_bytes: int,
    ) -> None:
        """step(slots, longest) queues one decode step over slots: (B,) int64 whose histories are at most
        `longest` and returns its result rows. pad_slot: a slot that may be computed at any time without
        effect. position_bytes: K and V of one position in one layer.
        """
        self._pad_slot = pad_slot
        self._batches = batch_sizes(max_num_seqs)
        self._lengths = history_lengths(max_model_len)
        self._captured: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor]] = {}
        pool = torch.cuda.graph_pool_handle()
        # The largest first: the smaller ones then fit into its memory.
        for batch in reversed(self._batches):
            for length in reversed(self._lengths):
                if batch * length * position_bytes > _GATHER_BYTES:
                    continue
                slots = torch.full((batch,), pad_slot, dtype=torch.int64, device="cuda")
                step(slots, length)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool):
                    results = step(slots, length)
                self._captured[batch, length] = (graph, slots, results)

    def replay(self, slots: list[int], longest: int) -> torch.Tensor | None:
        """Queue a captured step that covers the batch; its result rows (B, …), or None if there is none."""
        batch = next((size for size in self._batches if size >= len(slots)), None)
        length = next((length for length in self._lengths if length >= longest), None)
        captured = self._captured.get((batch, length))
        if captured is None:
            return None
        graph, static_slots, results = captured
        padded = torch.tensor(slots + [self._pad_slot] * (batch - len(slots)), dtype=torch.int64)
        static_slots.copy_(padded.pin_memory(), non_blocking=True)
        graph.replay()
        return results[: len(slots)]
