"""From what was measured to the rows of attention.csv; `verify` goes the same way from the stored samples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from harness.attention.formulas import Shape, decode_bytes, flops
from harness.attention.plan import OURS
from harness.roofline import BYTES_PER_NUMBER
from harness.rows import RunIdentity
from harness.schema import SCHEMA_VERSION, AttentionRow, AttentionSampleRow
from harness.store import Run
from harness.tables import SIGNIFICANT_DIGITS, read_text_rows, records_to_csv
from harness.verdict import THROTTLED

MOST_ERROR = 1.5
"""Largest error of ours over that of eager attention in the same number format."""
FLOOR = "floor"
OUT_OF_MEMORY = "out of memory"
SampleKey = tuple[str, str, str, int]


@dataclass(frozen=True)
class Measured:
    """A repetition of a cell and what surrounded it: with its samples it determines the row."""

    impl: str
    direction: str
    shape: Shape
    dtype: str
    sweep: str
    case: str
    repetition: int
    position: int
    started_at: str
    peak_mib: float | None
    error: float | None
    reference_error: float | None
    checked_rows: int
    failure: str
    sm_clock_mhz: int | None
    throttle_reasons: int
    undeclared_gpu_processes: str
    device: str
    torch_version: str
    triton_version: str

    @property
    def key(self) -> SampleKey:
        """Of its samples."""
        return self.case, self.impl, self.direction, self.repetition

    @classmethod
    def of(cls, row: AttentionRow) -> Measured:
        """The part of a row that is not computed."""
        lengths = tuple(map(int, row.lengths.split()))
        shape = Shape(row.causal, row.head_dim, row.heads, row.kv_heads, row.seq, row.batch, lengths)
        names = set(cls.__dataclass_fields__) - {"shape"}
        return cls(shape=shape, **{name: getattr(row, name) for name in names})


@dataclass(frozen=True)
class Floor:
    """What the GPU was seen to do in the run."""

    matmul_tflops: float
    copy_gb_per_s: float

    @classmethod
    def of(cls, samples: Iterable[AttentionSampleRow]) -> Floor:
        """Medians over all samples of the floor."""
        rates: dict[str, list[float]] = {"matmul": [], "copy": []}
        for sample in samples:
            if sample.case == FLOOR:
                rates[sample.impl].append(sample.work / sample.elapsed_ns)  # per ns: 10^9 a second
        return cls(median(rates["matmul"]) / 1e3, median(rates["copy"]))


def by_key(samples: Iterable[AttentionSampleRow]) -> dict[SampleKey, list[int]]:
    """Times in ns of each repetition."""
    found: dict[SampleKey, list[int]] = {}
    for row in samples:
        found.setdefault((row.case, row.impl, row.direction, row.repetition), []).append(row.elapsed_ns)
    return found


def attention_rows(
    who: RunIdentity, measured: Iterable[Measured], samples: list[AttentionSampleRow]
) -> list[AttentionRow]:
    """A row for each repetition."""
    times, floor = by_key(samples), Floor.of(samples)
    return [attention_row(who, each, times.get(each.key, []), floor) for each in measured]


def attention_row(who: RunIdentity, measured: Measured, times_ns: list[int], floor: Floor) -> AttentionRow:
    """The row of one repetition."""
    shape, gpus = measured.shape, who.hardware.gpus
    ns = median(times_ns) if times_ns else None
    tflops = flops(measured.direction, shape) / ns / 1e3 if ns else None
    gb_per_s = None
    if ns and measured.direction == "decode":
        gb_per_s = decode_bytes(shape, BYTES_PER_NUMBER[measured.dtype]) / ns
    reached, allowed = (tflops, floor.matmul_tflops) if gb_per_s is None else (gb_per_s, floor.copy_gb_per_s)
    reasons = _reasons(measured)
    same = {name: getattr(measured, name) for name in Measured.__dataclass_fields__ if name != "shape"}
    return AttentionRow(
        **same,
        schema_version=SCHEMA_VERSION,
        run=who.run,
        box=who.box,
        gpu=gpus[0].name if gpus else None,
        gpu_uuid=gpus[0].uuid if gpus else None,
        causal=shape.causal,
        head_dim=shape.head_dim,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        seq=shape.seq,
        batch=shape.batch,
        ms=ns / 1e6 if ns else None,
        tflops=tflops,
        roofline_share=reached / allowed if reached is not None else None,
        lengths=" ".join(map(str, shape.lengths)),
        samples=len(times_ns),
        gb_per_s=gb_per_s,
        matmul_tflops=floor.matmul_tflops,
        copy_gb_per_s=floor.copy_gb_per_s,
        verdict="INVALID" if reasons else "VALID",
        reasons="; ".join(reasons),
        git_commit=who.source.git_commit,
        dirty=who.source.dirty,
        lock_sha256=who.source.lock_sha256,
    )


def _reasons(measured: Measured) -> list[str]:
    """Why a row is INVALID: it was not measured, was measured beside others, or is wrong."""
    found = [measured.failure] if measured.failure else []
    own, reference = measured.error, measured.reference_error
    if own is not None and measured.impl in OURS and not own <= MOST_ERROR * reference:
        found.append(f"error: {own:.3g} > {MOST_ERROR} x {reference:.3g} of eager attention")
    if own is not None and own != own and measured.impl not in OURS:
        found.append("error: not a number")
    throttled = [name for bit, name in THROTTLED.items() if measured.throttle_reasons & bit]
    if throttled:
        found.append(f"clocks_throttled: {', '.join(throttled)}")
    if measured.undeclared_gpu_processes:
        found.append(f"gpu_shared: {measured.undeclared_gpu_processes}")
    return found


def stored(value: float | None) -> float | None:
    """A number as the CSV keeps it, so that the verdict is the same from there."""
    return None if value is None else float(f"{value:.{SIGNIFICANT_DIGITS}g}")


def differing_rows(run: Run) -> list[str]:
    """Every value of attention.csv against what the samples and the manifest give; a line a difference."""
    if not (run.path / "attention.csv").exists():
        return []
    rows, samples = run.records(AttentionRow), run.records(AttentionSampleRow)
    measured = [Measured.of(row) for row in rows]
    computed = attention_rows(RunIdentity.of(run.manifest, 0), measured, samples)
    written = read_text_rows(run.table_bytes("attention.csv"))
    expected = read_text_rows(records_to_csv(AttentionRow, computed))
    found = [
        f"attention.csv, {right['case']}, {right['impl']} {right['direction']}, repetition "
        f"{right['repetition']}: {name} is {left[name]!r}, samples give {right[name]!r}"
        for left, right in zip(written, expected, strict=True)
        for name in left
        if left[name] != right[name]
    ]
    named = {each.key for each in measured}
    lost = sorted({key for key in by_key(samples) if key[0] != FLOOR and key not in named})
    return found + [f"attention_samples.csv.gz: {', '.join(map(str, key))} has no row" for key in lost]
