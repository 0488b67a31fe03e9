"""The contract between the scheduler, the runner and the results: a Plan in, ring rows out.

A Plan is plain data. Plans and their ring rows replay a run: the device tables (token history, lengths,
finish flags, block tables, by slot) follow from them alone. Steps may be queued before earlier results are
read, so everything a Plan says of lengths is an upper bound; the device tables are authoritative.
"""

from dataclasses import dataclass

from engine.serving.request import SamplingParams


@dataclass(frozen=True, slots=True)
class Admit:
    """Load a sequence into a slot: its known tokens, and when and how it goes on."""

    slot: int
    tokens: tuple[int, ...]
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
    """Compute positions start … start+count-1 of known tokens; sample after the last one if `sample`."""

    slot: int
    start: int
    count: int
    sample: bool


@dataclass(frozen=True, slots=True)
class Decode:
    """Compute a slot's newest token and sample the next; at most `max_length` positions then have KV."""

    slot: int
    max_length: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One step. Results come in the order: decodes, then the chunks that sample."""

    admits: tuple[Admit, ...]
    grants: tuple[Grant, ...]
    decodes: tuple[Decode, ...]
    chunks: tuple[Chunk, ...]
    sampled: bool  # some row is not greedy
    filtered: bool  # some row uses top-k, top-p or min-p


@dataclass(frozen=True, slots=True)
class RingRow:
    """What one step did to one slot: the tokens it appended, and whether the sequence is over."""

    slot: int
    tokens: tuple[int, ...]
    finished: bool
