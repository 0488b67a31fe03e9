"""The choice of the next tokens from the sampling parameters of each slot."""

import torch

from engine.kernels.sample import penalised, sample
from engine.serving.plan import Features
from engine.serving.slot_row import column


class Sampler:
    """Reads the sampling columns of the slots' rows; all else it needs of a sequence is its token history."""

    def __init__(self, rows: torch.Tensor) -> None:
        """rows: (slots, words) int64, the device table of slot_row.ROW."""
        self.temperature = column(rows, "temperature")
        self.top_k = column(rows, "top_k")
        self.top_p = column(rows, "top_p")
        self.min_p = column(rows, "min_p")
        self.seed = column(rows, "seed")
        self.repetition = column(rows, "repetition")
        self.presence = column(rows, "presence")
        self.frequency = column(rows, "frequency")
        self.prompt_length = column(rows, "prompt_length")
        self.min_length = column(rows, "min_length")
        self.stop_ids = column(rows, "stop_ids")
        self.biased = column(rows, "biased")
        self.bias_ids = column(rows, "bias_ids")
        self.bias = column(rows, "bias")

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
            logits = self._with_bias(logits, slots)
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

    def _with_bias(self, logits: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        # Entries past the valid ones are a former owner's.
        valid = torch.arange(self.bias.shape[1], device=logits.device) < self.biased[slots][:, None]
        ids = torch.where(valid, self.bias_ids[slots], 0)
        return logits.scatter_add(1, ids, torch.where(valid, self.bias[slots], 0).to(logits.dtype))

    def _without_stops(self, logits: torch.Tensor, slots: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
        stop_ids = self.stop_ids[slots]
        banned = (length < self.min_length[slots])[:, None] & (stop_ids >= 0)
        addend = torch.zeros_like(stop_ids, dtype=logits.dtype).masked_fill(banned, float("-inf"))
        return logits.scatter_add(1, stop_ids.clamp(min=0), addend)
