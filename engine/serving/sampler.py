"""The choice of the next tokens from the sampling parameters of each slot."""

import torch

from engine.kernels.append_chosen import Columns, append, append_chosen_triton
from engine.kernels.sample import penalised, sample
from engine.serving.request import Features

# What a padded step must be able to do: which requests are in it is known on the device alone.
_ANY = Features(random=True, filters=True, penalties=True, bias=True, min_tokens=True, logprobs=None)


class Sampler:
    """Reads the sampling columns of the slots; all else it needs of a sequence is its token history."""

    def __init__(self, columns: Columns, tokens: torch.Tensor, vocabulary: int) -> None:
        """tokens: (slots, positions) int64, the histories."""
        self._columns = columns
        self._tokens = tokens
        if tokens.is_cuda:
            self._counts = torch.zeros(len(tokens), vocabulary, dtype=torch.int32, device=tokens.device)

    def append_chosen(self, logits: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Append the next tokens of slots: (R,), whatever they ask for but log probabilities, from logits:
        (R, V), which may be changed; the result rows (R, 4) of append."""
        if logits.is_cuda:
            return append_chosen_triton(logits, self._counts, self._columns, self._tokens, slots)
        return self.append(logits, self.choose(logits, slots, self._tokens.shape[1], _ANY), slots)

    def append(self, logits: torch.Tensor, chosen: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Append the chosen tokens (R,) to live slots (R,); the result rows (R, 4)."""
        return append(logits.amax(-1), chosen, self._columns, self._tokens, slots)

    def choose(
        self,
        logits: torch.Tensor,
        slots: torch.Tensor,
        longest: int,
        features: Features,
    ) -> torch.Tensor:
        """Next ids (R,) int64 from logits (R, V), for slots of at most `longest` tokens."""
        columns = self._columns
        length = columns.state[slots, 0]
        if features.bias or features.min_tokens or features.penalties:
            logits = logits.float() if logits.dtype != torch.float64 else logits.clone()
        if features.bias:
            logits = self._with_bias(logits, slots)
        if features.min_tokens:
            logits = self._without_stops(logits, slots, length)
        if features.penalties:
            logits = penalised(
                logits,
                self._tokens[slots, :longest],
                columns.prompt_length[slots],
                length,
                columns.repetition[slots],
                columns.presence[slots],
                columns.frequency[slots],
            )
        if not features.random:
            return logits.argmax(dim=-1)
        return sample(
            logits,
            columns.temperature[slots],
            columns.top_k[slots],
            columns.top_p[slots],
            columns.min_p[slots],
            columns.seed[slots],
            length,
            features.filters,
        )

    def _with_bias(self, logits: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        columns = self._columns
        # Entries past the valid ones are a former owner's.
        valid = torch.arange(columns.bias.shape[1], device=logits.device) < columns.biased[slots][:, None]
        ids = torch.where(valid, columns.bias_ids[slots], 0)
        return logits.scatter_add(1, ids, torch.where(valid, columns.bias[slots], 0).to(logits.dtype))

    def _without_stops(self, logits: torch.Tensor, slots: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
        stop_ids = self._columns.stop_ids[slots]
        banned = (length < self._columns.min_length[slots])[:, None] & (stop_ids >= 0)
        addend = torch.zeros_like(stop_ids, dtype=logits.dtype).masked_fill(banned, float("-inf"))
        return logits.scatter_add(1, stop_ids.clamp(min=0), addend)
