"""Tables of runs that time the engine's own steps and kernels: stages `profile` and `attention`."""

from __future__ import annotations

from typing import Literal

from harness.schema.record import Record, described


class StepTimeRow(Record):
    """One timed step of step_times.csv.gz: what the host spent on it, without the profiler."""

    load: str = described("name of the schedule that was played")
    step: int = described("number of the step, from 0, after the warm ones")
    tokens: int = described("tokens that the step gave", "tokens")
    wall_ns: int = described("whole step, from the end of the one before", "ns")
    schedule_ns: int = described("choosing the step", "ns")
    send_ns: int = described("packing its inputs and queueing their copy to the device", "ns")
    launch_ns: int = described("queueing the rest of it on the device", "ns")
    collect_ns: int = described(
        "reading the results of the oldest one, the wait for the device included", "ns"
    )
    process_ns: int = described("applying these results", "ns")


class KernelRow(Record):
    """One kernel or copy of kernels.csv.gz as torch.profiler traced it; on a CPU one call of an operation."""

    load: str = described("name of the schedule that was played")
    kernel: str = described("its name, the first 300 characters")
    start_ns: int = described("start, from that of the load's first", "ns")
    duration_ns: int = described("time that it took", "ns")
    own_ns: int = described("the same without the operations that it called", "ns")


class StepsRow(Record):
    """The steps of one load, a line of steps.csv: means over its timed steps, and over its traced ones."""

    run: str = described("name of the run")
    load: str = described("name of the schedule that was played")
    concurrency: int = described("requests kept in flight", "requests")
    device: str = described("cpu or cuda")
    dtype: str = described("number format of weights and activations")
    timed_steps: int = described("steps of step_times.csv.gz")
    traced_steps: int = described("steps behind kernels.csv.gz, as declared")
    tokens_per_step: float = described("tokens that a timed step gave", "tokens")
    wall_us: float = described("time of a timed step", "us")
    wall_us_p50: float = described("its median", "us")
    wall_us_p99: float = described("its 99th percentile", "us")
    schedule_us: float = described("choosing a step", "us")
    send_us: float = described("packing its inputs and queueing their copy to the device", "us")
    launch_us: float = described("queueing the rest of it on the device", "us")
    collect_us: float = described(
        "reading the results of the oldest one, the wait for the device included", "us"
    )
    process_us: float = described("applying these results", "us")
    other_us: float = described("wall_us less these parts: requests that come and go", "us")
    busy_us: float = described("time a traced step kept the device busy, copies included", "us")
    busy_share: float = described("busy_us / wall_us")
    gap_us: float = described("wall_us - busy_us", "us")
    pauses_per_step: float = described("pauses of the device of 1 us and more, in a traced step")
    traced_us: float = described("time of a traced step: more than wall_us is the profiler's", "us")
    floor_us: float | None = described(
        "least time of a step by the GPU's memory bandwidth and matmul rate, prompts included; empty where "
        "they are not known",
        "us",
    )


class ProfileRow(Record):
    """A group of kernels under one load, a line of profile.csv: means over the traced steps."""

    run: str = described("name of the run")
    load: str = described("name of the schedule that was played")
    concurrency: int = described("requests kept in flight", "requests")
    kernel: str = described("name of the kernels without the arguments of templates")
    category: str = described("gemm, attention, norm, rope, activation, sampling, copy, or other")
    step_us: float = described("time in a step", "us")
    launches_per_step: float = described("times it runs in a step")
    share: float = described("step_us / the sum over all kernels of the load")


class AttentionRow(Record):
    """One repetition of an implementation at a shape: one line of attention.csv, timed on the device.

    The forward is that of training: it keeps what the backward needs.
    """

    schema_version: int = described("version of this declaration")
    run: str = described("name of the run, the folder under results/v1")
    box: str = described("name of the machine, as given with --box or made from its hardware")
    gpu: str | None = described("GPU model; empty on a CPU")
    gpu_uuid: str | None = described("UUID of the GPU")
    impl: str = described("implementation, as harness/attention/implementations.py names it")
    direction: Literal["forward", "backward", "decode"] = described("what was timed")
    causal: bool = described("a query sees no later key")
    dtype: str = described("number format of the tensors")
    head_dim: int = described("numbers of a head")
    heads: int = described("query heads")
    kv_heads: int = described("key and value heads")
    seq: int = described("length of a sequence, of the longest where they are packed", "tokens")
    batch: int = described("sequences")
    ms: float | None = described("median of the samples; empty where it could not be timed", "ms")
    tflops: float | None = described(
        "credited operations / ms: forward 4 batch heads seq^2 head_dim, half of it when causal; backward "
        "2.5 times the forward, whatever is executed; decode 4 batch heads seq head_dim",
        "TFLOP/s",
    )
    roofline_share: float | None = described(
        "forward and backward: tflops / matmul_tflops; decode: gb_per_s / copy_gb_per_s"
    )
    peak_mib: float | None = described(
        "most memory in use above the inputs, in the backward with the forward before it; empty on a CPU",
        "MiB",
    )
    error: float | None = described(
        "largest difference from float64 over one sequence and KV head, of the tensor (output; gradients of "
        "query, key, value) that is worst against reference_error"
    )
    reference_error: float | None = described("the same of eager attention in the number format of the row")
    sweep: str = described("sweep of the stage file")
    case: str = described("name of the shape; one case is measured in alternation")
    lengths: str = described("lengths of packed sequences, separated by spaces; empty: all are seq")
    repetition: int = described("0 in the order A B C, 1 in the order C B A")
    position: int = described("place in the order of the run, from 0")
    started_at: str = described("start of the samples, UTC, ISO 8601")
    samples: int = described("times it was timed, the L2 cache flushed before each")
    gb_per_s: float | None = described("decode: bytes of keys and values / ms; else empty", "GB/s")
    matmul_tflops: float | None = described("square matmul of the same run, median", "TFLOP/s")
    copy_gb_per_s: float | None = described(
        "copy within the device in the same run, bytes read and written, median", "GB/s"
    )
    checked_rows: int = described("last query rows of the sequence that error is over", "tokens")
    verdict: Literal["VALID", "INVALID"] = described("INVALID rows are kept and never drawn")
    reasons: str = described("why the row is INVALID, separated by '; '")
    failure: str = described("why it could not be measured; empty when it could")
    sm_clock_mhz: int | None = described("clock of the multiprocessors after the last sample", "MHz")
    throttle_reasons: int = described("every bit of NVML's clock event reasons seen; 0 on a CPU")
    undeclared_gpu_processes: str = described("processes on the GPU before the run, separated by '; '")
    device: str = described("cpu or cuda")
    torch_version: str = described("version of torch")
    triton_version: str = described("version of triton")
    git_commit: str = described("commit of the checkout that measured, or unknown")
    dirty: bool = described("true when the checkout differs from that commit, or when that is not known")
    lock_sha256: str = described("SHA-256 of uv.lock, or unknown")


class AttentionSampleRow(Record):
    """One timing of attention_samples.csv.gz, from which the times of attention.csv are computed."""

    case: str = described("case of attention.csv, or floor")
    impl: str = described("implementation; of the floor: matmul or copy")
    direction: str = described("as in attention.csv, or floor")
    repetition: int = described("as in attention.csv; of the floor: 0 before all cases, 1 after them")
    sample: int = described("number of the sample, from 0")
    work: int = described("of the floor: operations of the matmul, bytes read and written of the copy")
    elapsed_ns: int = described("time between two events on the device; of a CPU by its clock", "ns")
