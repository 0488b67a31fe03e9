"""The contract between the scheduler, the runner and the results: a Plan in, ring rows out.

A Plan is plain data. Plans and their ring rows replay a run: the device tables (token history, lengths,
finish flags, block tables, by slot) follow from them alone. Steps may be queued before earlier results are
read, so everything a Plan says of lengths is an upper bound; the device tables are authoritative.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from engine.serving.request import SamplingParams, TokenLogprobs


@dataclass(frozen=True, slots=True)
class Admit:
    """Load a sequence into a slot: its known tokens, and when and how it goes on.

    The first prompt_length tokens are the prompt; after a preemption generated ones follow.
    """

    slot: int
    tokens: tuple[int, ...]
    prompt_length: int
    params: SamplingParams
    stop_ids: tuple[int, ...]
    max_length: int


@dataclass(frozen=True, slots=True)
class Grant:
    """Blocks first_index … of a slot's block table."""

    slot: int
    first_index: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Compute positions start … start+count-1 of known tokens; sample after the last one if `sample`.

    logprobs: None, or how many alternatives to report for each known token after the chunk's first one …
    up to the one that follows the chunk.
    """

    slot: int
    start: int
    count: int
    sample: bool
    logprobs: int | None = None


@dataclass(slots=True)  # one a sequence and step: frozen ones take three times as long to make
class Decode:
    """Compute a slot's newest token and sample the next; at most `max_length` positions then have KV."""

    slot: int
    max_length: int


@dataclass(frozen=True, slots=True)
class Features:
    """What the sampling of a step must be able to do: the union of its requests' wishes."""

    random: bool
    filters: bool
    penalties: bool
    bias: bool
    min_tokens: bool
    logprobs: int | None

    @property
    def greedy(self) -> bool:
        """Whether the best token of the bare logits is all that is asked for."""
        changed = self.random or self.penalties or self.bias or self.min_tokens
        return not changed and self.logprobs is None

    @staticmethod
    def union(all_params: Iterable[SamplingParams]) -> "Features":
        every = list(all_params)
        return Features(
            random=any(p.temperature > 0 for p in every),
            filters=any(p.top_k > 0 or p.top_p < 1 or p.min_p > 0 for p in every),
            penalties=any(
                p.repetition_penalty != 1 or p.presence_penalty != 0 or p.frequency_penalty != 0
                for p in every
            ),
            bias=any(p.logit_bias for p in every),
            min_tokens=any(p.min_tokens for p in every),
            logprobs=max((p.logprobs for p in every if p.logprobs is not None), default=None),
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """One step. Results come in the order: decodes, then the chunks that sample."""

    admits: tuple[Admit, ...]
    grants: tuple[Grant, ...]
    decodes: tuple[Decode, ...]
    chunks: tuple[Chunk, ...]
    features: Features


@dataclass(slots=True)  # one a sequence and step: frozen ones take three times as long to make
class RingRow:
    """What one step did to one slot: the tokens it appended, and whether the sequence is over.

    broken: the logits were not finite, nothing was appended. logprobs belong to the appended tokens,
    prompt_logprobs to the chunk's.
    """

    slot: int
    tokens: tuple[int, ...]
    finished: bool
    broken: bool = False
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
