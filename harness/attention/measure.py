"""One block of cells: checked against float64 first, then timed in alternation."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.attention.accuracy import Error, Inputs, Truth, checked_rows, cut, truth
from harness.attention.formulas import Shape
from harness.attention.implementations import COMPILED, attend_with
from harness.attention.plan import Block, Cell, FloorPlan, Timing, interleaved
from harness.attention.rows import FLOOR, OUT_OF_MEMORY, Measured, stored
from harness.attention.timing import MIB, Clock, Operation
from harness.gpu import GpuSampler
from harness.play import GpuAccess
from harness.provenance import utc_now
from harness.schema import AttentionSampleRow

MOST_FAILURE_CHARACTERS = 160


@dataclass(frozen=True)
class Bench:
    """What cells are measured with. `versions` are those of torch and triton."""

    clock: Clock
    timing: Timing
    dtype: str
    device: str
    gpu: GpuAccess
    seed: int
    versions: tuple[str, str]
    undeclared_gpu_processes: str


@dataclass(frozen=True)
class Subject:
    """A cell that was tried once, or failed."""

    operation: Operation | None
    error: Error | None
    peak_mib: float | None
    failure: str


def measure_block(
    bench: Bench, block: Block, position: int
) -> tuple[list[Measured], list[AttentionSampleRow]]:
    """Two repetitions of each cell. What fails is a row without time, whatever the failure."""
    if any(cell.impl in COMPILED for cell in block.cells):
        torch.compiler.reset()  # or the limit of recompilations is met after eight shapes
    bench.clock.forget()
    subjects = dict(_subjects(bench, block))
    measured: list[Measured] = []
    samples: list[AttentionSampleRow] = []
    for repetition, cell in interleaved(block.cells):
        row, times_ns = _repetition(bench, block, cell, subjects[cell], repetition, position + len(measured))
        measured.append(row)
        samples += _sample_rows(row, times_ns)
    return measured, samples


def _repetition(
    bench: Bench, block: Block, cell: Cell, subject: Subject, repetition: int, position: int
) -> tuple[Measured, list[int]]:
    """What surrounded the samples of a cell, and their times."""
    started_at, times_ns, failure = utc_now(), [], subject.failure
    with GpuSampler(bench.gpu.nvml, bench.gpu.gpus) as watched:
        if subject.operation is not None:
            try:
                times_ns = _times_ns(bench, subject.operation)
            except Exception as error:
                failure = _described(error)
    clock_mhz, throttle_reasons = _gpu_state(watched)
    measured = Measured(
        impl=cell.impl,
        direction=cell.direction,
        shape=cell.shape,
        dtype=bench.dtype,
        sweep=block.sweep,
        case=cell.case,
        repetition=repetition,
        position=position,
        started_at=started_at,
        peak_mib=stored(subject.peak_mib),
        error=stored(subject.error.own if subject.error else None),
        reference_error=stored(subject.error.reference if subject.error else None),
        checked_rows=1 if block.block_size else checked_rows(cell.shape),
        failure=failure,
        sm_clock_mhz=clock_mhz,
        throttle_reasons=throttle_reasons,
        undeclared_gpu_processes=bench.undeclared_gpu_processes,
        device=bench.device,
        torch_version=bench.versions[0],
        triton_version=bench.versions[1],
    )
    return measured, times_ns


def _subjects(bench: Bench, block: Block) -> Iterator[tuple[Cell, Subject]]:
    """Each cell tried once: compiled, compared with float64, its memory seen."""
    if block.block_size:
        yield from _decode_subjects(bench, block)
        return
    inputs: dict[Shape, Inputs] = {}
    truths: dict[tuple[str, Shape], Truth] = {}
    for cell in block.cells:
        if cell.shape not in inputs:
            inputs[cell.shape] = random_inputs(cell.shape, bench)
        key = (cell.direction, cell.shape)
        if key not in truths:
            truths[key] = truth(cell.direction, cell.shape, inputs[cell.shape])
            bench.clock.forget()
        yield cell, _tried(bench, cell, inputs[cell.shape], truths[key])


def _decode_subjects(bench: Bench, block: Block) -> Iterator[tuple[Cell, Subject]]:
    from harness.attention.decode import random_cache

    shape = block.cells[0].shape
    cache = random_cache(shape, block.block_size, getattr(torch, bench.dtype), bench.device, bench.seed)
    exact = cache.truth()
    for cell in block.cells:
        try:
            step = cache.step(cell.impl)
            error = exact.error(cache.cut(step.run(None)))
            yield cell, Subject(step, error, bench.clock.peak_mib(step), "")
        except Exception as failure:
            yield cell, Subject(None, None, None, _described(failure))


def _tried(bench: Bench, cell: Cell, inputs: Inputs, exact: Truth) -> Subject:
    try:
        operation = operation_of(cell, inputs, bench.device)
        results = operation.run(operation.prepare())
        results = results if isinstance(results, tuple) else (results,)
        parts = cut(cell.direction, cell.shape, [result.detach() for result in results])
        error = exact.error(parts)
        del results, parts
        return Subject(operation, error, bench.clock.peak_mib(operation), "")
    except Exception as failure:
        described = _described(failure)
    gc.collect()  # after the traceback, whose frames hold tensors
    bench.clock.forget()
    return Subject(None, None, None, described)


def operation_of(cell: Cell, inputs: Inputs, device: str) -> Operation:
    """The cell as something to time: a forward that keeps what the backward needs, or the backward alone."""
    shape = cell.shape
    attend = attend_with(cell.impl, shape, device)
    leaves = [_shaped(tensor, shape).requires_grad_() for tensor in (inputs.query, inputs.key, inputs.value)]
    if cell.direction == "forward":
        return Operation(lambda _: attend(*leaves))
    grad_out = _shaped(inputs.grad_out, shape)
    return Operation(lambda out: torch.autograd.grad(out, leaves, grad_out), prepare=lambda: attend(*leaves))


def random_inputs(shape: Shape, bench: Bench) -> Inputs:
    """Normally distributed tensors, flat."""
    generator = torch.Generator(bench.device).manual_seed(bench.seed)

    def normal(heads: int) -> Tensor:
        return torch.randn(
            shape.tokens, heads, shape.head_dim, generator=generator, device=bench.device,
            dtype=getattr(torch, bench.dtype),
        )  # fmt: skip

    return Inputs(normal(shape.heads), normal(shape.kv_heads), normal(shape.kv_heads), normal(shape.heads))


def _shaped(tensor: Tensor, shape: Shape) -> Tensor:
    """A leaf that shares the numbers."""
    flat = tensor.detach()
    return flat if shape.lengths else flat.unflatten(0, (shape.batch, shape.seq))


def _times_ns(bench: Bench, operation: Operation) -> list[int]:
    warm_ns = [bench.clock.sample_ns(operation) for _ in range(bench.timing.warmups)][-1]
    return [bench.clock.sample_ns(operation) for _ in range(bench.timing.samples_for(warm_ns))]


def _described(error: Exception) -> str:
    """In one line. A compiler wraps what its kernels raise, so that the type alone does not tell."""
    if isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error):
        return OUT_OF_MEMORY
    first_line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first_line}"[:MOST_FAILURE_CHARACTERS]


def _gpu_state(watched: GpuSampler) -> tuple[int | None, int]:
    """Clock at the end, and all reasons for clocks that were seen."""
    readings = watched.rows("", 0)
    bits = 0
    for reading in readings:
        bits |= reading.throttle_reasons or 0
    return (readings[-1].sm_clock_mhz if readings else None), bits


def _sample_rows(measured: Measured, times_ns: list[int]) -> list[AttentionSampleRow]:
    case, impl, direction, repetition = measured.key
    return [
        AttentionSampleRow(
            case=case, impl=impl, direction=direction, repetition=repetition, sample=number, work=0,
            elapsed_ns=elapsed_ns,
        )
        for number, elapsed_ns in enumerate(times_ns)
    ]  # fmt: skip


def measure_floor(bench: Bench, plan: FloorPlan, repetition: int) -> list[AttentionSampleRow]:
    """Times of a square matmul of random numbers, and of a copy within the device."""
    dtype = getattr(torch, bench.dtype)
    left, right = (torch.randn(plan.matmul, plan.matmul, device=bench.device, dtype=dtype) for _ in range(2))
    source = torch.ones(plan.copy_mib * MIB, dtype=torch.int8, device=bench.device)
    target = torch.empty_like(source)
    rows = []
    for impl, work, operation in (
        ("matmul", 2 * plan.matmul**3, Operation(lambda _: left @ right)),
        ("copy", 2 * source.numel(), Operation(lambda _: target.copy_(source))),
    ):
        rows += [
            AttentionSampleRow(
                case=FLOOR, impl=impl, direction=FLOOR, repetition=repetition, sample=number, work=work,
                elapsed_ns=elapsed_ns,
            )
            for number, elapsed_ns in enumerate(_times_ns(bench, operation))
        ]  # fmt: skip
    return rows
