"""The sweeps that the stage file declares, and the blocks of cells that come of them, in order."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, ValidationError, field_validator, model_validator

from harness.attention.formulas import Direction, Shape, dense_twin, packed
from harness.errors import BadInput
from harness.stage import STAGES, Declared
from harness.store import sha256_of

STAGE_FILE = STAGES / "kernels" / "attention.toml"
ImplementationName = Literal[
    "triton", "triton_fused", "triton_invariant", "sdpa_flash", "sdpa_cudnn", "flex", "varlen",
    "compiled_naive", "naive", "reference",
]  # fmt: skip
"""triton: our kernels; triton_fused: our decode step with rotation and KV write; triton_invariant: the same,
with bits that no batch mate changes; reference: plain PyTorch of engine/kernels; varlen: torch.nn.attention's
own."""
IMPLEMENTATIONS = get_args(ImplementationName)
OURS = ("triton", "triton_fused", "triton_invariant")
DECODING = (*OURS, "reference")
Positive = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class Cell:
    """An implementation at a shape in one direction. `case` names the shape."""

    case: str
    impl: str
    direction: Direction
    shape: Shape


@dataclass(frozen=True)
class Block:
    """Cells that are measured in alternation, with random tensors of their own. `block_size` is that of a
    paged cache, 0 where there is none."""

    sweep: str
    cells: tuple[Cell, ...]
    block_size: int = 0


def interleaved(cells: tuple[Cell, ...]) -> list[tuple[int, Cell]]:
    """(repetition, cell) in the order A B C, C B A: a steady drift cancels in the mean of the two."""
    return [*((0, cell) for cell in cells), *((1, cell) for cell in reversed(cells))]


class _Sweep(Declared):
    """`only`: sequence lengths of an implementation that is not measured at all of them."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")
    implementations: tuple[ImplementationName, ...] = Field(min_length=1)
    only: dict[ImplementationName, tuple[Positive, ...]] = Field({})

    def measured_at(self, seq: int) -> list[str]:
        """Implementations at this sequence length, in the order declared."""
        return [impl for impl in self.implementations if seq in self.only.get(impl, (seq,))]


class DenseSweep(_Sweep):
    """Equal sequences: of each length as many as have `rows` rows together, at least one."""

    kind: Literal["dense"]
    causal: bool
    hidden: Positive | None = None
    heads: Positive | None = None
    kv_heads: Positive | None = None
    head_dims: tuple[Positive, ...]
    rows: Positive
    seqs: tuple[Positive, ...]

    @model_validator(mode="after")
    def _has_heads(self) -> DenseSweep:
        if (self.hidden is None) == (self.heads is None):
            raise ValueError(f"sweep {self.name} needs either hidden or heads")
        return self

    def blocks(self) -> Iterator[Block]:
        """One a sequence length and head size."""
        for seq in self.seqs:
            for dim in self.head_dims:
                heads = self.heads or self.hidden // dim
                shape = Shape(self.causal, dim, heads, self.kv_heads or heads, seq, max(1, self.rows // seq))
                case = f"{self.name}-d{dim}-s{seq}"
                cells = chain.from_iterable(_both(case, impl, shape) for impl in self.measured_at(seq))
                yield Block(self.name, tuple(cells))


class PackedSweep(_Sweep):
    """Sequences of different lengths without padding, beside `dense` on equal ones of the same work."""

    kind: Literal["packed"]
    causal: bool
    heads: Positive
    kv_heads: Positive
    head_dim: Positive
    lengths: tuple[Positive, ...] = Field(min_length=1)
    dense: tuple[ImplementationName, ...] = ()

    def blocks(self) -> Iterator[Block]:
        """A single one."""
        shape = packed(self.lengths, self.causal, self.heads, self.kv_heads, self.head_dim)
        measured = [(self.name, impl, shape) for impl in self.implementations]
        measured += [(f"{self.name}-dense", impl, dense_twin(shape)) for impl in self.dense]
        yield Block(self.name, tuple(chain.from_iterable(_both(*each) for each in measured)))


class DecodeSweep(_Sweep):
    """One query a sequence over a paged cache, for each (batch, sequence length)."""

    kind: Literal["decode"]
    heads: Positive
    kv_heads: Positive
    head_dim: Positive
    block_size: Positive
    shapes: tuple[tuple[Positive, Positive], ...]

    @field_validator("implementations")
    @classmethod
    def _decodes(cls, implementations: tuple[str, ...]) -> tuple[str, ...]:
        if other := [name for name in implementations if name not in DECODING]:
            raise ValueError(f"{', '.join(other)} cannot decode; {', '.join(DECODING)} can")
        return implementations

    def blocks(self) -> Iterator[Block]:
        """One a shape."""
        for batch, seq in self.shapes:
            shape = Shape(False, self.head_dim, self.heads, self.kv_heads, seq, batch)
            case = f"{self.name}-b{batch}-s{seq}"
            cells = tuple(Cell(case, impl, "decode", shape) for impl in self.measured_at(seq))
            yield Block(self.name, cells, self.block_size)


def _both(case: str, impl: str, shape: Shape) -> list[Cell]:
    return [Cell(case, impl, "forward", shape), Cell(case, impl, "backward", shape)]


Sweep = Annotated[DenseSweep | PackedSweep | DecodeSweep, Field(discriminator="kind")]


class Timing(Declared):
    """Each repetition takes `samples`, or as many as fit into `budget_ms` by the time of the last warm-up,
    but no fewer than `least_samples`."""

    warmups: Positive
    samples: Positive
    least_samples: Positive
    budget_ms: float = Field(gt=0)

    def samples_for(self, warm_ns: int) -> int:
        """How many, by the time of the last warm-up."""
        return max(self.least_samples, min(self.samples, int(self.budget_ms * 1e6 / max(1, warm_ns))))


class FloorPlan(Declared):
    """What the GPU is measured by: a square matmul and a copy."""

    matmul: Positive
    copy_mib: Positive


class AttentionPlan(Declared):
    dtype: Literal["bfloat16", "float16", "float32"]
    timing: Timing
    floor: FloorPlan
    sweeps: tuple[Sweep, ...] = Field(min_length=1)

    def blocks(self) -> list[Block]:
        """The first block of every sweep, then the second, …: a run that is cut has some of each."""
        rounds = zip_longest(*(sweep.blocks() for sweep in self.sweeps))
        return [block for each in rounds for block in each if block is not None]


class AttentionFile(Declared):
    description: str
    seed: int
    cpu: AttentionPlan | None = None
    cuda: AttentionPlan | None = None


@dataclass(frozen=True)
class AttentionStage:
    """The stage file with the hash of its bytes."""

    sha256: str
    declared: AttentionFile

    def on(self, device: str) -> AttentionPlan:
        """Its part for a device. Raises BadInput when it has none."""
        plan: AttentionPlan | None = getattr(self.declared, device)
        if plan is None:
            raise BadInput(f"stage attention has no part for {device}")
        return plan


def load_attention_stage(path: Path = STAGE_FILE) -> AttentionStage:
    """Raises BadInput for a wrong file."""
    content = path.read_bytes()
    try:
        declared = AttentionFile.model_validate(tomllib.loads(content.decode()))
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    return AttentionStage(sha256_of(content), declared)
