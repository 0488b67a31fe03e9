"""The contract between the scheduler, the runner and the results: a Plan in, result rows out.

A Plan is plain data. Plans and their results replay a run: the device tables (token history, lengths,
finish flags, block tables, by slot) follow from them alone. Steps may be queued before earlier results are
read, so everything a Plan says of lengths is an upper bound; the device tables are authoritative.
"""

from dataclasses import dataclass, field

import numpy as np

from engine.serving.request import Features, SamplingParams, TokenLogprobs


@dataclass(frozen=True, slots=True, eq=False)
class Admit:
    """Load a sequence into a slot: its known tokens, (n,) int32, and when and how it goes on.

    The first prompt_length tokens are the prompt; after a preemption generated ones follow.
    """

    slot: int
    tokens: np.ndarray
    prompt_length: int
    params: SamplingParams
    stop_ids: tuple[int, ...]
    max_length: int


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


@dataclass(slots=True, eq=False)  # one a step: frozen ones take three times as long to make
class Plan:
    """One step. Results come in the order: decodes, then the chunks that sample.

    grants: (G, 3) int64, each a slot, an index into its block table, and the block that stands there from now
    on. decodes: (D,) int64, the slots of which the newest token is computed and the next one sampled.
    longest_decode: at most so many positions of each of them have KV then.
    """

    admits: tuple[Admit, ...]
    grants: np.ndarray
    decodes: np.ndarray
    longest_decode: int
    chunks: tuple[Chunk, ...]
    features: Features

    @property
    def sampled_slots(self) -> np.ndarray:
        """The slots of the step's results, in their order: (R,) int64."""
        chunks = [chunk.slot for chunk in self.chunks if chunk.sample]
        return np.concatenate([self.decodes, chunks], dtype=np.int64) if chunks else self.decodes


@dataclass(slots=True, eq=False)
class Results:
    """What one step did to its slots, in the Plan's order.

    rows: (R, 4) int64: tokens appended (0 or 1), the token, whether the sequence is over, and whether it is
    because its logits were not finite. logprobs: of each row's token, or empty where nobody asked.
    prompt_logprobs: by slot, of the chunks that asked.
    """

    rows: np.ndarray
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: dict[int, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
