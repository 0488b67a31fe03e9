"""Device tables by slot, and one step over them: inputs, forward, sampling, update, results."""

from collections import deque
from dataclasses import dataclass

import numpy as np
import torch

from engine.config import EngineConfig
from engine.kernels.sample import top_logprobs
from engine.model.llama import Batch, Llama
from engine.serving.graphs import DecodeGraphs
from engine.serving.plan import Admit, Chunk, Plan, RingRow
from engine.serving.request import TokenLogprobs
from engine.serving.sampler import Sampler

# A block of log probabilities: of the tokens (n,), the best ids (n, k), and theirs (n, k).
Logprobs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class _Launched:
    """A queued step: the slots of its result rows, and the results, readable once `done` has passed."""

    slots: list[int]
    results: torch.Tensor  # (R, 4) int64: tokens appended (0 or 1), token, finished, broken
    logprobs: Logprobs | None
    prompt_logprobs: dict[int, Logprobs]  # by slot
    done: torch.cuda.Event | None


class Runner:
    """Executes Plans in order. The scheduler decides, this writes: nothing else touches the tables.

    Tables are indexed by slot; positions, newest tokens and finish flags are read from them on the device,
    so a step can be queued before the host has seen the results of the one before.
    """

    def __init__(self, config: EngineConfig, model: Llama) -> None:
        self.config = config
        self.model = model
        # One slot and one block more than the scheduler knows: what fills a captured batch up writes there.
        slots, length = config.max_num_seqs + 1, config.max_model_len
        blocks = -(-length // config.block_size)
        self.sampler = Sampler(slots, config.device)

        def table(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=config.device)

        self.tokens = table(slots, length)
        self.length = table(slots)
        self.max_length = table(slots)
        self.finished = table(slots, dtype=torch.bool)
        self.block_table = table(slots, blocks)
        self.kv_cache = table(
            model.config.num_layers,
            2,
            (config.num_blocks + 1) * config.block_size,
            model.config.num_kv_heads,
            model.config.head_dim,
            dtype=model.embedding.dtype,
        )
        self._launched: deque[_Launched] = deque()
        self._graphs = self._capture() if config.device == "cuda" else None

    @torch.inference_mode()
    def launch(self, plan: Plan) -> None:
        """Queue one step on the device."""
        for admit in plan.admits:
            self._admit(admit)
        for grant in plan.grants:
            last = grant.first_index + len(grant.blocks)
            self.block_table[grant.slot, grant.first_index : last] = self._ints(grant.blocks)
        step = self._replay(plan) or self._run(plan)
        if step.done:
            step.done.record()
        self._launched.append(step)

    def collect(self) -> list[RingRow]:
        """Wait for the oldest queued step; its ring rows: one for each sampled slot, and one for each
        prompt chunk that only reports log probabilities."""
        step = self._launched.popleft()
        if step.done:
            step.done.synchronize()
        logprobs = _rows(step.logprobs) if step.logprobs else ()
        rows = []
        for i, (slot, result) in enumerate(zip(step.slots, step.results.tolist(), strict=True)):
            appended, token, finished, broken = result
            mine = logprobs[i : i + 1] if appended else ()
            prompt = _rows(step.prompt_logprobs.pop(slot)) if slot in step.prompt_logprobs else ()
            rows.append(RingRow(slot, (token,) * appended, bool(finished), bool(broken), mine, prompt))
        for slot, block in step.prompt_logprobs.items():
            rows.append(RingRow(slot, (), False, prompt_logprobs=_rows(block)))
        return rows

    @torch.inference_mode()
    def _capture(self) -> DecodeGraphs:
        pad_slot = self.config.max_num_seqs
        self.length[pad_slot] = 1
        self.finished[pad_slot] = True
        self.block_table[pad_slot] = self.config.num_blocks
        model = self.model.config
        position_bytes = 2 * model.num_kv_heads * model.head_dim * self.kv_cache.itemsize
        return DecodeGraphs(
            self._greedy_decode, self.config.max_num_seqs, self.config.max_model_len, pad_slot, position_bytes
        )

    def _replay(self, plan: Plan) -> _Launched | None:
        """Queue the step as a captured one, if it is one of greedy decodes only."""
        if self._graphs is None or plan.chunks or not plan.features.greedy:
            return None
        slots = [decode.slot for decode in plan.decodes]
        results = self._graphs.replay(slots, max(decode.max_length for decode in plan.decodes))
        return None if results is None else _Launched(slots, _to_host(results), None, {}, torch.cuda.Event())

    def _run(self, plan: Plan) -> _Launched:
        """Queue any step, kernel by kernel."""
        batch, sample_rows, slots = self._inputs(plan)
        hidden = self.model.forward(batch, self.kv_cache)
        prompt_logprobs = self._prompt_logprobs(plan, batch, hidden)
        results, logprobs = self._sample(hidden[sample_rows], self._ints(slots), plan)
        return _Launched(
            slots,
            _to_host(results),
            logprobs and tuple(map(_to_host, logprobs)),
            {slot: tuple(map(_to_host, block)) for slot, block in prompt_logprobs.items()},
            torch.cuda.Event() if results.is_cuda else None,
        )

    def _greedy_decode(self, slots: torch.Tensor, longest: int) -> torch.Tensor:
        batch = Batch(*self._decode_rows(slots, longest), chunks=())
        logits = self.model.logits(self.model.forward(batch, self.kv_cache))
        return self._append(logits, logits.argmax(dim=-1), slots)

    def _ints(self, values: list[int] | tuple[int, ...]) -> torch.Tensor:
        """Host integers as an int64 tensor on the device, without waiting for it."""
        host = torch.from_numpy(np.asarray(values, dtype=np.int64))
        if self.config.device == "cpu":
            return host
        return host.pin_memory().to(self.config.device, non_blocking=True)

    def _admit(self, admit: Admit) -> None:
        self.tokens[admit.slot, : len(admit.tokens)] = self._ints(admit.tokens)
        self.length[admit.slot] = len(admit.tokens)
        self.max_length[admit.slot] = admit.max_length
        self.finished[admit.slot] = False
        self.sampler.admit(admit.slot, admit.params, admit.stop_ids, admit.prompt_length)

    def _inputs(self, plan: Plan) -> tuple[Batch, torch.Tensor, list[int]]:
        """The step's rows, which of them are sampled, and the slots those belong to."""
        decoding = [decode.slot for decode in plan.decodes]
        longest = max((decode.max_length for decode in plan.decodes), default=0)
        *rows, history, visible = self._decode_rows(self._ints(decoding), longest)
        tokens, all_positions, all_kv_slots = ([part] for part in rows)
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

    def _decode_rows(self, slots: torch.Tensor, longest: int) -> tuple[torch.Tensor, ...]:
        """Tokens, positions and KV slots (B,) of each slot's newest token; history, visible (B, longest)."""
        size = self.config.block_size
        positions = self.length[slots] - 1
        # A finished slot's queued steps write its newest token's KV again, into blocks it still holds.
        kv_slots = self.block_table[slots, positions // size] * size + positions % size
        history = self._kv_slots(self.block_table[slots], longest)
        visible = torch.arange(longest, device=self.config.device) <= positions[:, None]
        # A masked value still meets a zero weight, and 0 · NaN is NaN: what is not visible is read from
        # block 0, which stays zero, never from blocks that somebody else has written.
        history = torch.where(visible, history, 0)
        return self.tokens[slots, positions], positions, kv_slots, history, visible

    def _kv_slots(self, blocks: torch.Tensor, length: int) -> torch.Tensor:
        """Cache slots (…, length) of positions 0 … length-1, from rows of the block table (…, blocks)."""
        size = self.config.block_size
        needed = blocks[..., : -(-length // size)]
        offsets = torch.arange(size, device=self.config.device)
        return (needed[..., None] * size + offsets).flatten(-2)[..., :length]

    def _prompt_logprobs(self, plan: Plan, batch: Batch, hidden: torch.Tensor) -> dict[int, Logprobs]:
        """For each chunk that asks: log probabilities of the known tokens that follow its positions."""
        asking = {
            chunk.slot: (chunk, rows)
            for chunk, rows in zip(plan.chunks, batch.chunks, strict=True)
            if chunk.logprobs is not None
        }
        return {slot: self._chunk_logprobs(chunk, hidden[a:b]) for slot, (chunk, (a, b, _)) in asking.items()}

    def _chunk_logprobs(self, chunk: Chunk, hidden: torch.Tensor) -> Logprobs:
        known = chunk.count - chunk.sample
        first = chunk.start + 1
        following = self.tokens[chunk.slot, first : first + known]
        return top_logprobs(self.model.logits(hidden[:known]), following, chunk.logprobs)

    def _sample(
        self, hidden: torch.Tensor, slots: torch.Tensor, plan: Plan
    ) -> tuple[torch.Tensor, Logprobs | None]:
        """Choose tokens and append them; the result rows (R, 4), and log probabilities where asked for."""
        logits = self.model.logits(hidden)
        length = self.length[slots]
        longest = max([d.max_length for d in plan.decodes] + [c.start + c.count for c in plan.chunks])
        history = self.tokens[slots, :longest] if plan.features.penalties else self.tokens[slots, :0]
        chosen = self.sampler.choose(logits, slots, history, length, plan.features)
        wanted = plan.features.logprobs
        logprobs = None if wanted is None else top_logprobs(logits, chosen, wanted)
        return self._append(logits, chosen, slots), logprobs

    def _append(self, logits: torch.Tensor, chosen: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Append the chosen tokens to live slots and set finish flags; the result rows (R, 4)."""
        length = self.length[slots]
        live = ~self.finished[slots]
        broken = live & ~logits.amax(-1).isfinite()
        appended = live & ~broken
        # A finished sequence of full length has no place left: its last token is written over itself.
        place = torch.where(appended, length, length - 1)
        self.tokens[slots, place] = torch.where(appended, chosen, self.tokens[slots, place])
        self.length[slots] = length + appended
        over = self.sampler.stops(slots, chosen) | (length + 1 >= self.max_length[slots]) | broken
        finished = self.finished[slots] | over
        self.finished[slots] = finished
        return torch.stack((appended.long(), chosen, finished.long(), broken.long()), dim=-1)


def _to_host(values: torch.Tensor) -> torch.Tensor:
    """A host copy that is valid once the work queued so far is done."""
    if not values.is_cuda:
        return values
    return torch.empty_like(values, device="cpu", pin_memory=True).copy_(values, non_blocking=True)


def _rows(block: Logprobs) -> tuple[TokenLogprobs, ...]:
    tokens, ids, top = (part.tolist() for part in block)
    return tuple(TokenLogprobs(t, tuple(i), tuple(p)) for t, i, p in zip(tokens, ids, top, strict=True))
