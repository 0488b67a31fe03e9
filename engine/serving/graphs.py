"""Steps as CUDA graphs: one launch instead of some hundred.

Everything such a step reads lies at fixed addresses (its packed inputs, the device tables by slot), and
lengths are read on the device, so a graph is captured once per padded shape and serves every Plan that fits.
"""

import gc
from collections.abc import Callable

import torch

from engine.config import EngineConfig
from engine.serving.plan import Plan
from engine.serving.step_inputs import Shape, rows_of


def decode_shapes(config: EngineConfig) -> list[Shape]:
    """Shapes of steps without prompt chunks, smallest first; the last one covers every such step.

    Powers of two, and from 16 on half-way sizes too: attention and sampling grow with the batch.
    """
    sizes = [1, 2, 4, 8, *_growing(16, 2, config.max_num_seqs)]
    return [Shape(rows, rows, rows, longest_item=1) for rows in _up_to(config.max_num_seqs, sizes)]


def mixed_shapes(config: EngineConfig, longest_item: int) -> list[Shape]:
    """Shapes of steps with prompt chunks, smallest first; the last one covers every step.

    Up to some 200 rows a step is bound by reading the weights, and padding is nearly free; from there on
    compute counts, and a step is padded by a quarter at most.
    """
    sizes = [64, 128, 192, *_growing(256, 4, config.max_batched_tokens)]
    found = []
    for rows in _up_to(config.max_batched_tokens, sizes):
        samples = min(rows, config.max_num_seqs)
        # Each sequence of a step has at most one item that is not full.
        items = min(rows, samples + rows // longest_item)
        found.append(Shape(rows, items, samples, longest_item))
    return found


def _growing(first: int, parts: int, largest: int) -> list[int]:
    """first, doubled again and again beyond `largest`, with each doubling cut into `parts`."""
    powers = [first << i for i in range(largest.bit_length())]
    return [power + power * part // parts for power in powers for part in range(parts)]


def _up_to(largest: int, sizes: list[int]) -> list[int]:
    return [*(size for size in sizes if size < largest), largest]


class PaddedSteps:
    """The step in every captured shape; the graphs' memory is one shared pool.

    On a CPU nothing is captured, and the same padded step runs op by op.
    """

    def __init__(
        self, step: Callable[[Shape], torch.Tensor], config: EngineConfig, longest_item: int
    ) -> None:
        """step(shape) queues one step over the packed inputs and returns its result rows (samples, 4)."""
        self._step = step
        self._decode = decode_shapes(config)
        self._mixed = mixed_shapes(config, longest_item)
        self._captured: dict[Shape, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}

    def capture(self, clear: Callable[[Shape], None]) -> None:
        """Capture every shape. clear(shape) makes the packed inputs ones that may run without effect."""
        # An engine that is no longer used may hold graphs, whose end during a capture would break it.
        gc.collect()
        pool = torch.cuda.graph_pool_handle()
        # The largest first: the smaller ones then fit into its memory.
        for shape in sorted((*self._decode, *self._mixed), key=lambda shape: -shape.rows):
            clear(shape)
            # Kernels are compiled and chosen here, which a capture cannot do.
            self._step(shape)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                results = self._step(shape)
            self._captured[shape] = graph, results

    def covering(self, plan: Plan) -> Shape:
        """The smallest shape that the Plan fits into."""
        rows = rows_of(plan)
        return next(shape for shape in (self._mixed if plan.chunks else self._decode) if shape.rows >= rows)

    def run(self, shape: Shape) -> torch.Tensor:
        """Queue the step over the packed inputs; its result rows, which the next run may overwrite."""
        if shape not in self._captured:
            return self._step(shape)
        graph, results = self._captured[shape]
        graph.replay()
        return results
