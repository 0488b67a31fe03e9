"""One step over the device tables: inputs, forward, sampling, update, results."""

from collections import deque
from dataclasses import dataclass, field

import torch

from engine.config import EngineConfig
from engine.kernels.paged_attention import rows_per_item
from engine.kernels.sample import top_logprobs
from engine.model.batch import Batch
from engine.model.llama import Llama
from engine.serving.gathered import gathered_inputs
from engine.serving.graphs import PaddedSteps
from engine.serving.paged import PagedInputs
from engine.serving.plan import Chunk, Plan, Results
from engine.serving.request import TokenLogprobs
from engine.serving.sampler import Sampler
from engine.serving.staging import Staging
from engine.serving.step_inputs import Shape
from engine.serving.tables import Tables

# A block of log probabilities: of the tokens (n,), the best ids (n, k), and theirs (n, k).
Logprobs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class _Launched:
    """A queued step: its results, readable once `done` has passed."""

    results: torch.Tensor  # (R, 4) int64 on the host: tokens appended (0 or 1), token, finished, broken
    done: torch.cuda.Event | None
    logprobs: Logprobs | None = None
    prompt_logprobs: dict[int, Logprobs] = field(default_factory=dict)  # by slot
    staging: Staging | None = None


class Runner:
    """Executes Plans in order. The scheduler decides, this writes: nothing else touches the tables.

    Positions, newest tokens and finish flags are read from the tables on the device, so a step can be queued
    before the host has seen the results of the one before.
    """

    def __init__(self, config: EngineConfig, model: Llama, paged: bool | None = None) -> None:
        """paged: whether attention reads the cache in place; None: as the preset says on a GPU, not on a CPU.
        On a CPU paged steps are padded as on a GPU, but nothing is captured.
        """
        self.model = model
        self.tables = Tables(config)
        self.sampler = Sampler(self.tables.columns, self.tables.tokens, model.config.vocab_size)
        shape = (
            model.config.num_layers,
            2,
            (config.num_blocks + 1) * config.block_size,
            model.config.num_kv_heads,
            model.config.head_dim,
        )
        self.kv_cache = torch.zeros(shape, dtype=model.embedding.dtype, device=config.device)
        self._launched: deque[_Launched] = deque()
        on_gpu = config.device == "cuda"
        self._paged = self._padded = None
        if on_gpu and config.preset.paged if paged is None else paged:
            longest_item = rows_per_item(model.config.num_heads, model.config.num_kv_heads)
            self._paged = PagedInputs(config, self.tables, longest_item, model.config.num_kv_heads)
            # Of the newest padded step, for whoever asks for log probabilities.
            dtype = torch.float64 if config.dtype == "float64" else torch.float32
            rows = config.max_num_seqs, model.config.vocab_size
            self._logits = torch.empty(rows, dtype=dtype, device=config.device)
            self._padded = PaddedSteps(self._padded_step, config, longest_item)
            if on_gpu and config.preset.graphs:
                self._capture()

    @torch.inference_mode()
    def launch(self, plan: Plan) -> None:
        """Queue one step on the device."""
        self._launched.append(self._launch_paged(plan) if self._paged else self._launch_gathered(plan))

    def collect(self) -> Results:
        """Wait for the oldest queued step; what it did."""
        step = self._launched.popleft()
        if step.done:
            step.done.synchronize()
        # The staging is the next step's as soon as it is given back.
        rows = step.results.numpy().copy()
        if step.staging:
            self._paged.give_back(step.staging)
        logprobs = _rows(step.logprobs) if step.logprobs else ()
        return Results(rows, logprobs, {slot: _rows(block) for slot, block in step.prompt_logprobs.items()})

    @torch.inference_mode()
    def _capture(self) -> None:
        self._padded.capture(self._paged.clear)

    def _launch_paged(self, plan: Plan) -> _Launched:
        """In a padded shape, as one graph, where that has what is asked for; else as it is, op by op."""
        features = plan.features
        changed = features.bias or features.min_tokens or features.penalties
        # Log probabilities are of bare logits, and those of prompts need logits of every row.
        padded = not (changed and features.logprobs is not None)
        padded &= all(chunk.logprobs is None for chunk in plan.chunks)
        shape = self._padded.covering(plan) if padded else self._paged.exact(plan)
        staging = self._paged.send(plan, shape)
        samples = len(plan.decodes) + sum(chunk.sample for chunk in plan.chunks)
        if padded:
            results, prompt_logprobs = self._padded.run(shape)[:samples], {}
            logprobs = self._logprobs(self._logits[:samples], results[:, 1], features.logprobs)
        else:
            results, logprobs, prompt_logprobs = self._step(plan, *self._paged.batch(shape))
        host_results = staging.results[:samples]
        host_results.copy_(results, non_blocking=True)
        if staging.done:
            staging.done.record()
        return _Launched(host_results, staging.done, logprobs, prompt_logprobs, staging)

    def _launch_gathered(self, plan: Plan) -> _Launched:
        changes = (torch.from_numpy(part).to(self.tables.device) for part in self.tables.changes(plan))
        self.tables.write(*changes)
        results, logprobs, prompt_logprobs = self._step(plan, *gathered_inputs(self.tables, plan))
        host_results = _to_host(results)
        done = torch.cuda.Event() if results.is_cuda else None
        if done:
            done.record()
        return _Launched(host_results, done, logprobs, prompt_logprobs)

    def _padded_step(self, shape: Shape) -> torch.Tensor:
        """A step without log probabilities; the result rows. The logits stay where they are."""
        batch, sample_rows, slots = self._paged.batch(shape)
        hidden = self.model.forward(batch, self.kv_cache)
        # A step that only decodes samples after each of its rows, in their order.
        sampled = hidden if shape.longest_item == 1 else hidden[sample_rows]
        logits = self.model.logits(sampled, out=self._logits[: len(sampled)])
        return self.sampler.append_chosen(logits, slots)

    def _step(
        self, plan: Plan, batch: Batch, sample_rows: torch.Tensor, slots: torch.Tensor
    ) -> tuple[torch.Tensor, Logprobs | None, dict[int, Logprobs]]:
        """Any step: the result rows, and on the host log probabilities of output and prompts."""
        hidden = self.model.forward(batch, self.kv_cache)
        prompt_logprobs = self._prompt_logprobs(plan, hidden)
        logits = self.model.logits(hidden[sample_rows])
        longest = max([plan.longest_decode] + [chunk.start + chunk.count for chunk in plan.chunks])
        chosen = self.sampler.choose(logits, slots, longest, plan.features)
        logprobs = self._logprobs(logits, chosen, plan.features.logprobs)
        return self.sampler.append(logits, chosen, slots), logprobs, prompt_logprobs

    @staticmethod
    def _logprobs(logits: torch.Tensor, chosen: torch.Tensor, count: int | None) -> Logprobs | None:
        return None if count is None else _block_to_host(top_logprobs(logits, chosen, count))

    def _prompt_logprobs(self, plan: Plan, hidden: torch.Tensor) -> dict[int, Logprobs]:
        """For each chunk that asks: log probabilities of the known tokens that follow its positions."""
        found, row = {}, len(plan.decodes)
        for chunk in plan.chunks:
            if chunk.logprobs is not None:
                found[chunk.slot] = self._chunk_logprobs(chunk, hidden[row : row + chunk.count])
            row += chunk.count
        return found

    def _chunk_logprobs(self, chunk: Chunk, hidden: torch.Tensor) -> Logprobs:
        known = chunk.count - chunk.sample
        first = chunk.start + 1
        following = self.tables.tokens[chunk.slot, first : first + known]
        return _block_to_host(top_logprobs(self.model.logits(hidden[:known]), following, chunk.logprobs))


def _to_host(values: torch.Tensor) -> torch.Tensor:
    """A host copy that is valid once the work queued so far is done."""
    if not values.is_cuda:
        return values
    return torch.empty_like(values, device="cpu", pin_memory=True).copy_(values, non_blocking=True)


def _block_to_host(block: Logprobs) -> Logprobs:
    token, ids, top = map(_to_host, block)
    return token, ids, top


def _rows(block: Logprobs) -> tuple[TokenLogprobs, ...]:
    tokens, ids, top = (part.tolist() for part in block)
    return tuple(TokenLogprobs(t, tuple(i), tuple(p)) for t, i, p in zip(tokens, ids, top, strict=True))
