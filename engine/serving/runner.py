"""Device tables by slot, and one step over them: inputs, forward, sampling, update, results."""

from collections import deque
from dataclasses import dataclass

import numpy as np
import torch

from engine.config import EngineConfig
from engine.kernels.sample import sample
from engine.model.llama import Batch, Llama
from engine.serving.plan import Admit, Plan, RingRow

MAX_STOP_IDS = 32


@dataclass(frozen=True)
class _Launched:
    """A queued step: the slots of its result rows, and the results once `done` has passed."""

    slots: list[int]
    results: torch.Tensor  # (R, 3) int64: tokens appended (0 or 1), token, finished
    done: torch.cuda.Event | None


class Runner:
    """Executes Plans in order. The scheduler decides, this writes: nothing else touches the tables.

    Tables are indexed by slot; positions, newest tokens and finish flags are read from them on the device,
    so a step can be queued before the host has seen the results of the one before.
    """

    def __init__(self, config: EngineConfig, model: Llama) -> None:
        self.config = config
        self.model = model
        slots, length = config.max_num_seqs, config.max_model_len
        blocks = -(-length // config.block_size)

        def table(*shape: int, dtype: torch.dtype = torch.int64, fill: float = 0) -> torch.Tensor:
            return torch.full(shape, fill, dtype=dtype, device=config.device)

        self.tokens = table(slots, length)
        self.length = table(slots)
        self.max_length = table(slots)
        self.finished = table(slots, dtype=torch.bool)
        self.block_table = table(slots, blocks)
        self.stop_ids = table(slots, MAX_STOP_IDS, fill=-1)
        self.temperature = table(slots, dtype=torch.float32)
        self.top_k = table(slots)
        self.top_p = table(slots, dtype=torch.float32, fill=1)
        self.min_p = table(slots, dtype=torch.float32)
        self.seed = table(slots)
        self.kv_cache = torch.zeros(
            (model.config.num_layers, 2, config.num_blocks * config.block_size,
             model.config.num_kv_heads, model.config.head_dim),
            dtype=model.embedding.dtype, device=config.device,
        )  # fmt: skip
        self._launched: deque[_Launched] = deque()

    @torch.inference_mode()
    def launch(self, plan: Plan) -> None:
        """Queue one step on the device."""
        for admit in plan.admits:
            self._admit(admit)
        for grant in plan.grants:
            last = grant.first_index + len(grant.blocks)
            self.block_table[grant.slot, grant.first_index : last] = self._ints(grant.blocks)
        batch, sample_rows, slots = self._inputs(plan)
        hidden = self.model.forward(batch, self.kv_cache)
        results = self._sample(hidden[sample_rows], self._ints(slots), plan)
        done = None
        if results.is_cuda:
            results = torch.empty_like(results, device="cpu", pin_memory=True).copy_(
                results, non_blocking=True
            )
            done = torch.cuda.Event()
            done.record()
        self._launched.append(_Launched(slots, results, done))

    def collect(self) -> list[RingRow]:
        """Wait for the oldest queued step; its ring rows."""
        step = self._launched.popleft()
        if step.done:
            step.done.synchronize()
        return [
            RingRow(slot, (token,) * appended, bool(finished))
            for slot, (appended, token, finished) in zip(step.slots, step.results.tolist(), strict=True)
        ]

    def _ints(self, values: list[int] | tuple[int, ...] | np.ndarray) -> torch.Tensor:
        """Host integers as an int64 tensor on the device, without waiting for it."""
        host = torch.from_numpy(np.asarray(values, dtype=np.int64))
        if self.config.device == "cpu":
            return host
        return host.pin_memory().to(self.config.device, non_blocking=True)

    def _admit(self, admit: Admit) -> None:
        slot, params = admit.slot, admit.params
        self.tokens[slot, : len(admit.tokens)] = self._ints(admit.tokens)
        self.length[slot] = len(admit.tokens)
        self.max_length[slot] = admit.max_length
        self.finished[slot] = False
        self.stop_ids[slot] = -1
        if admit.stop_ids:
            self.stop_ids[slot, : len(admit.stop_ids)] = self._ints(admit.stop_ids)
        self.temperature[slot] = params.temperature
        self.top_k[slot] = params.top_k
        self.top_p[slot] = params.top_p
        self.min_p[slot] = params.min_p
        self.seed[slot] = params.seed

    def _inputs(self, plan: Plan) -> tuple[Batch, torch.Tensor, list[int]]:
        """The step's rows, which of them are sampled, and the slots those belong to."""
        size = self.config.block_size
        decoding = [decode.slot for decode in plan.decodes]
        slots = self._ints(decoding)
        positions = self.length[slots] - 1
        # A finished slot's queued steps write its newest token's KV again, into blocks it still holds.
        kv_slots = self.block_table[slots, positions // size] * size + positions % size
        history, visible = self._decode_history(plan, slots, positions)
        tokens, all_positions, all_kv_slots = [self.tokens[slots, positions]], [positions], [kv_slots]
        chunks, sample_rows, row = [], list(range(len(decoding))), len(decoding)
        for chunk in plan.chunks:
            end = chunk.start + chunk.count
            chunk_history = self._kv_slots(self.block_table[chunk.slot], end)
            tokens.append(self.tokens[chunk.slot, chunk.start : end])
            all_positions.append(torch.arange(chunk.start, end, device=self.config.device))
            all_kv_slots.append(chunk_history[chunk.start :])
            chunks.append((row, row + chunk.count, chunk_history))
            row += chunk.count
            if chunk.sample:
                sample_rows.append(row - 1)
        batch = Batch(
            torch.cat(tokens),
            torch.cat(all_positions),
            torch.cat(all_kv_slots),
            history,
            visible,
            tuple(chunks),
        )
        sampled_slots = decoding + [chunk.slot for chunk in plan.chunks if chunk.sample]
        return batch, self._ints(sample_rows), sampled_slots

    def _decode_history(
        self, plan: Plan, slots: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        longest = max((decode.max_length for decode in plan.decodes), default=0)
        history = self._kv_slots(self.block_table[slots], longest)
        visible = torch.arange(longest, device=self.config.device) <= positions[:, None]
        return history, visible

    def _kv_slots(self, blocks: torch.Tensor, length: int) -> torch.Tensor:
        """Cache slots (…, length) of positions 0 … length-1, from rows of the block table (…, blocks)."""
        size = self.config.block_size
        needed = blocks[..., : -(-length // size)]
        offsets = torch.arange(size, device=self.config.device)
        return (needed[..., None] * size + offsets).flatten(-2)[..., :length]

    def _sample(self, hidden: torch.Tensor, slots: torch.Tensor, plan: Plan) -> torch.Tensor:
        """Choose tokens, append them to live slots, set finish flags; returns the result rows (R, 3)."""
        logits = self.model.logits(hidden)
        position = self.length[slots]
        if plan.sampled:
            chosen = sample(
                logits, self.temperature[slots], self.top_k[slots], self.top_p[slots], self.min_p[slots],
                self.seed[slots], position, plan.filtered,
            )  # fmt: skip
        else:
            chosen = logits.argmax(dim=-1)
        live = ~self.finished[slots]
        # A finished sequence of full length has no place left: its last position is written over itself.
        place = torch.where(live, position, position - 1)
        self.tokens[slots, place] = torch.where(live, chosen, self.tokens[slots, place])
        self.length[slots] = position + live
        over = (self.stop_ids[slots] == chosen[:, None]).any(-1) | (position + 1 >= self.max_length[slots])
        self.finished[slots] |= live & over
        return torch.stack((live.long(), chosen, self.finished[slots].long()), dim=-1)
