"""Sampling parameters by slot, on the device, and the choice of the next tokens from them."""

import torch

from engine.kernels.sample import penalised, sample
from engine.serving.plan import Features
from engine.serving.request import SamplingParams

MAX_STOP_IDS = 32
MAX_LOGIT_BIAS = 300


class Sampler:
    """One writer of the sampling tables; everything it needs of a sequence is its token history."""

    def __init__(self, slots: int, device: str) -> None:
        def table(dtype: torch.dtype, *width: int) -> torch.Tensor:
            return torch.zeros(slots, *width, dtype=dtype, device=device)

        self.temperature = table(torch.float32)
        self.top_k = table(torch.int64)
        self.top_p = table(torch.float32)
        self.min_p = table(torch.float32)
        self.seed = table(torch.int64)
        self.repetition = table(torch.float32)
        self.presence = table(torch.float32)
        self.frequency = table(torch.float32)
        self.prompt_length = table(torch.int64)
        self.min_length = table(torch.int64)
        self.stop_ids = table(torch.int64, MAX_STOP_IDS)
        self.bias_ids = table(torch.int64, MAX_LOGIT_BIAS)
        self.bias = table(torch.float32, MAX_LOGIT_BIAS)

    def admit(self, slot: int, params: SamplingParams, stop_ids: tuple[int, ...], prompt_length: int) -> None:
        """Load one request's wishes into its slot."""
        self.temperature[slot] = params.temperature
        self.top_k[slot] = params.top_k
        self.top_p[slot] = params.top_p
        self.min_p[slot] = params.min_p
        self.seed[slot] = params.seed
        self.repetition[slot] = params.repetition_penalty
        self.presence[slot] = params.presence_penalty
        self.frequency[slot] = params.frequency_penalty
        self.prompt_length[slot] = prompt_length
        self.min_length[slot] = prompt_length + params.min_tokens
        self.stop_ids[slot] = _padded(stop_ids, MAX_STOP_IDS, -1, self.stop_ids)
        if params.logit_bias:
            ids, addends = zip(*params.logit_bias, strict=True)
            self.bias_ids[slot] = _padded(ids, MAX_LOGIT_BIAS, 0, self.bias_ids)
            self.bias[slot] = _padded(addends, MAX_LOGIT_BIAS, 0, self.bias)
        else:
            self.bias[slot] = 0

    def choose(
        self,
        logits: torch.Tensor,
        slots: torch.Tensor,
        tokens: torch.Tensor,
        length: torch.Tensor,
        features: Features,
    ) -> torch.Tensor:
        """Next ids (R,) int64 from logits (R, V).

        tokens: (R, L) the rows' histories, of which length: (R,) are valid; `length` is also the index
        of the new token.
        """
        if features.bias or features.min_tokens or features.penalties:
            logits = logits.float() if logits.dtype != torch.float64 else logits.clone()
        if features.bias:
            logits = logits.scatter_add(1, self.bias_ids[slots], self.bias[slots].to(logits.dtype))
        if features.min_tokens:
            logits = self._without_stops(logits, slots, length)
        if features.penalties:
            logits = penalised(
                logits,
                tokens,
                self.prompt_length[slots],
                length,
                self.repetition[slots],
                self.presence[slots],
                self.frequency[slots],
            )
        if not features.random:
            return logits.argmax(dim=-1)
        return sample(
            logits,
            self.temperature[slots],
            self.top_k[slots],
            self.top_p[slots],
            self.min_p[slots],
            self.seed[slots],
            length,
            features.filters,
        )

    def stops(self, slots: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """Which of the chosen ids (R,) end their sequences: (R,) bool."""
        return (self.stop_ids[slots] == chosen[:, None]).any(-1)

    def _without_stops(self, logits: torch.Tensor, slots: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
        stop_ids = self.stop_ids[slots]
        banned = (length < self.min_length[slots])[:, None] & (stop_ids >= 0)
        addend = torch.zeros_like(stop_ids, dtype=logits.dtype).masked_fill(banned, float("-inf"))
        return logits.scatter_add(1, stop_ids.clamp(min=0), addend)


def _padded(values: tuple[float, ...], width: int, fill: int, like: torch.Tensor) -> torch.Tensor:
    """Host values as a row of `width` on the table's device, without waiting for it."""
    row = torch.full((width,), fill, dtype=like.dtype)
    row[: len(values)] = torch.tensor(values, dtype=like.dtype)
    return row.pin_memory().to(like.device, non_blocking=True) if like.is_cuda else row
