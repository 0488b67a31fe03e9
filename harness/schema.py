"""What a run holds: the columns of its tables and the fields of its manifest, declared once.

The CSV writer, the reader, the checks and RUNBOOK.md all follow these declarations. A new column goes to the
end of its table, so that older readers keep working, and has a default, which older rows get.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

SCHEMA_VERSION = 1
RECEIVED_BIN_MS = 10

RequestStatus = Literal["ok", "http_error", "stream_error", "timeout", "reset", "truncated", "mismatch"]


def described(description: str, unit: str = "", **options: Any) -> Any:
    """A field with its meaning and unit (units are empty for names, counts without dimension, and flags)."""
    return Field(description=description, json_schema_extra={"unit": unit}, **options)


class Record(BaseModel):
    """Base of every declared row and manifest part: unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings")


class ServingRow(Record):
    """One measured cell of serving.csv: one system, one configuration, one schedule, one repetition."""

    schema_version: int = described("version of this declaration")
    run: str = described("name of the run, the folder under results/v1")
    cell: str = described("content address: hash of configuration, schedule, system and repetition")
    box: str = described("name of the machine, as given with --box or made from its hardware")
    gpu: str | None = described("GPU model; empty on a CPU")
    gpu_uuid: str | None = described("UUID of the GPU (of each, separated by spaces)")
    num_gpus: int = described("GPUs the system used", "GPUs")
    system: str = described("engine, vllm, sglang, transformers, tensorrt-llm, null, or openai")
    system_version: str = described("package version of the system; for engine with the git commit")
    config: str = described("named configuration of the system")
    model: str = described("model name")
    weights: str = described("real, random, or unknown")
    dtype: str = described("number format of weights and activations")
    tensor_parallel: int = described("GPUs that share one model copy", "GPUs")
    replicas: int = described("model copies behind the URL")
    speculation: str = described("speculative decoding method, or none")
    accepted_per_step: float | None = described(
        "tokens accepted in a verification step; empty without speculation", "tokens"
    )
    workload: str = described("what the prompts and lengths are")
    load: str = described("load shape: closed, poisson, gamma, constant, bursts, steps, or trace")
    concurrency: int | None = described("requests kept in flight; closed loop only", "requests")
    rate_rps: float | None = described("offered rate; open loop only", "requests/s")
    schedule_sha256: str = described("SHA-256 of the schedule file that was played")
    prefix_cache: str = described("prefix cache of the configuration: on, off, or unknown")
    cached_tokens: int | None = described(
        "prompt tokens answered from a prefix cache, as the server reports them, over the requests counted; "
        "empty when the server does not say",
        "tokens",
    )
    repetition: int = described("number of the repetition, from 0")
    position: int = described("place of the cell in the order of the run, from 0")
    started_at: str = described("start of play, UTC, ISO 8601")
    verdict: Literal["VALID", "INVALID"] = described("INVALID rows are kept and never drawn")
    reasons: str = described("why the cell is INVALID, separated by '; '")
    requests: int = described("requests whose intended send time lies in the window", "requests")
    failed: int = described("of these, the ones that did not end as asked", "requests")
    prompt_tokens: int = described("prompt tokens of these requests by the server's usage", "tokens")
    output_tokens: int = described("generated tokens received inside the window", "tokens")
    window_s: float = described("length of the measured window, after ramp and before drain", "s")
    output_tokens_per_s: float = described("output_tokens / window_s", "tokens/s")
    requests_per_s: float = described("requests that ended well inside the window / window_s", "requests/s")
    ttft_ms_p50: float | None = described("median time to first token, from the intended send", "ms")
    ttft_ms_p99: float | None = described("its 99th percentile; empty below 662 requests", "ms")
    tpot_ms_p50: float | None = described("median time per output token after the first event", "ms")
    tpot_ms_p99: float | None = described("its 99th percentile; empty below 662 requests", "ms")
    e2e_ms_p50: float | None = described("median time from the intended send to the last token", "ms")
    e2e_ms_p99: float | None = described("its 99th percentile; empty below 662 requests", "ms")
    attainment: float | None = described("share of the counted requests within slo_ttft_ms and slo_tpot_ms")
    goodput_rps: float | None = described("requests within both limits / window_s", "requests/s")
    events_per_token: float | None = described("stream events received / tokens received, in the window")
    token_count_method: str = described(
        "how tokens per event are known: continuous_usage, returned_ids, assumed (one each), mixed, or none"
    )
    lag_ms_p99: float | None = described("99th percentile of actual - intended send, at any number", "ms")
    client_headroom: float | None = described("ceiling_events_per_s / events_per_s")
    joules_per_token: float | None = described(
        "GPU energy over the window / output_tokens; empty without a GPU energy counter", "J/token"
    )
    git_commit: str = described("commit of the checkout that measured, or unknown")
    dirty: bool = described("true when the checkout differs from that commit, or when that is not known")
    lock_sha256: str = described("SHA-256 of uv.lock, or unknown")
    device: str = described("cpu or cuda")
    notes: str = described("what a reader should know of a cell that is still VALID, separated by '; '")
    slo_ttft_ms: float | None = described("limit of TTFT used by attainment and goodput_rps", "ms")
    slo_tpot_ms: float | None = described("limit of TPOT used by attainment and goodput_rps", "ms")
    ttft_from_send_ms_p50: float | None = described("as ttft_ms_p50, from the actual send (diagnostic)", "ms")
    played: int = described("requests sent in the whole play, ramp and drain included", "requests")
    played_failed: int = described("of these, the ones that did not end as asked", "requests")
    events_per_s: float = described("stream events received / window_s", "events/s")
    ceiling_events_per_s: float | None = described("what the client reaches on the null server", "events/s")
    mean_in_flight: float = described("requests between intended send and end, mean over the window")
    littles_law_ratio: float | None = described(
        "mean_in_flight / (arrival rate x mean time in system): 1 in a steady state, edges apart"
    )
    startup_s: float = described("start of the server process to its first healthy answer", "s")
    session: int = described("part of the run: one resumed on another machine has several", default=0)
    load_label: str = described("the load in words", default="")
    load_name: str = described(
        "name of the load in the stage file; each of its repetitions has a schedule of its own, with other "
        "prompts under the same law, so that no prefix cache is warm",
        default="",
    )
    memory_share: float | None = described(
        "share of the GPU's memory that the server was given; empty: its own default", default=None
    )
    residents: str = described(
        "servers that were in memory, separated by spaces; all but the one measured were frozen", default=""
    )
    server_cached_tokens: int | None = described(
        "prompt tokens answered from the prefix cache during the play, by the server's own counters",
        "tokens",
        default=None,
    )
    server_preemptions: int | None = described(
        "requests preempted during the play, by the server's own counters", default=None
    )
    icl_ms_p50: float | None = described(
        "median gap between events of a request, over the requests whose events are kept", "ms", default=None
    )
    icl_ms_p99: float | None = described("its 99th percentile", "ms", default=None)
    events_stride: int = described(
        "events.csv.gz holds the events of each request whose number is a multiple of this", default=1
    )
    power_w_mean: float | None = described(
        "joules of all GPUs over the window / window_s; empty without an energy counter", "W", default=None
    )
    sm_clock_mhz_mean: float | None = described(
        "mean clock of the multiprocessors over the window", "MHz", default=None
    )
    temperature_c_max: float | None = described("highest GPU temperature in the window", "degC", default=None)
    roofline_share: float | None = described(
        "output_tokens_per_s / what the GPU's memory bandwidth and matmul rate allow for this load; "
        "empty where either is not known",
        default=None,
    )
    client_stall_ms: float | None = described(
        "longest time in the play that a client process did not run when it was to", "ms", default=None
    )
    client_busy: float | None = described(
        "largest share of a core that a client process used: 1 is its end, whatever the ceiling says",
        default=None,
    )


class RequestRow(Record):
    """One request of requests.csv.gz. Times count from the start of play of its cell (CLOCK_MONOTONIC)."""

    cell: str = described("cell of serving.csv")
    request: int = described("line of the schedule, from 0")
    worker: int = described("client process that sent it")
    intended_ns: int = described("intended send; in a closed loop the time its slot became free", "ns")
    sent_ns: int | None = described("actual send; empty when it could not be sent", "ns")
    first_ns: int | None = described("receipt of the first event with a generated token", "ns")
    last_ns: int | None = described("receipt of the last event with a generated token", "ns")
    done_ns: int = described("receipt of [DONE]; without it the end of the answer or of the attempt", "ns")
    status: RequestStatus = described("ok, or how it failed; mismatch: not the tokens that were asked for")
    http_status: int | None = described("status code of the answer")
    finish_reason: str | None = described("length or stop, as the server says")
    prompt_tokens: int | None = described("by the server's usage", "tokens")
    requested_tokens: int = described("max_tokens of the schedule", "tokens")
    output_tokens: int | None = described("by the server's usage", "tokens")
    cached_tokens: int | None = described("by the server's usage", "tokens")
    first_event_tokens: int | None = described("tokens in the first event with a token", "tokens")
    events: int = described("events that carried tokens")
    empty_events: int = described("events without a token")
    bytes_after_done: int = described("bytes of the answer after [DONE]", "bytes")
    connection_reused: bool = described("sent on a connection that had carried a request before")
    token_count_method: str | None = described("how tokens per event are known, as in serving.csv")
    output_sha256: str = described("first 16 hex digits of the SHA-256 of the received text")
    error: str | None = described("what went wrong")


class EventRow(Record):
    """One received event of events.csv.gz, in order of receipt within its request."""

    cell: str = described("cell of serving.csv")
    request: int = described("line of the schedule, from 0")
    gap_us: int = described(
        "whole microseconds since the request's previous event, the first since its intended send "
        "(differences of times rounded down, so that sums are exact)",
        "us",
    )
    tokens: int = described("generated tokens it carried", "tokens")


class ReceivedRow(Record):
    """What arrived in one span of RECEIVED_BIN_MS of received.csv.gz; spans without an event have no row.

    Kept for every request, also where events.csv.gz keeps those of some only.
    """

    cell: str = described("cell of serving.csv")
    t_ms: int = described("start of the span, from the start of play", "ms")
    events: int = described("stream events that carried tokens")
    reads: int = described("socket reads that brought them: events of a request with one stamp came together")
    tokens: int = described("generated tokens", "tokens")


class KneeRow(Record):
    """The highest rate a system keeps up with, as an interval: one line of knee.csv."""

    system: str = described("system")
    config: str = described("named configuration")
    search: str = described("name of the search in the stage file")
    target_attainment: float = described("least attainment that counts as keeping up")
    slo_ttft_ms: float | None = described("limit of TTFT", "ms")
    slo_tpot_ms: float | None = described("limit of TPOT", "ms")
    low_rps: float | None = described(
        "highest rate of the grid at which every repetition kept up; empty: not even the lowest", "requests/s"
    )
    high_rps: float | None = described(
        "lowest rate of the grid at which one did not; empty: the highest did", "requests/s"
    )
    cells: int = described("cells that were played for it")
    complete: bool = described(
        "false when the search was cut: the interval is wider than a step", default=True
    )


class CorrectnessRow(Record):
    """One prompt of correctness.csv: greedy output of a system against that of transformers in fp32."""

    system: str = described("system that was asked")
    prompt: str = described("id of the prompt")
    identical: bool = described("same token ids, text, end, and number of prompt tokens")
    first_divergence: int | None = described("position of the first differing token; empty when identical")
    gap_at_divergence: float | None = described(
        "the reference's top-2 logit gap there: near zero is a tie, not a fault", "logits"
    )
    tokens: int = described("tokens the reference generated", "tokens")
    reference_finish: str = described("stop (end of sequence) or length")
    system_finish: str | None = described("the same, as the system says")
    text_identical: bool = described("same text")
    reference_ids: str = described("token ids of the reference, separated by spaces")
    system_ids: str = described("token ids of the system, separated by spaces; empty when it returns none")
    error: str | None = described("why the system did not answer")
    forced_tokens: int | None = described(
        "tokens of the reference that the system scored, each after the prompt and the reference's tokens "
        "before it (teacher forcing); empty when not asked for",
        "tokens",
        default=None,
    )
    forced_agree: int | None = described(
        "of these, the ones that are the system's most likely token too, ties included",
        "tokens",
        default=None,
    )


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


class GpuSampleRow(Record):
    """One reading of gpu_samples.csv.gz, taken through NVML while a cell was played."""

    cell: str = described("cell of serving.csv")
    gpu: int = described("index of the GPU")
    t_ns: int = described("time of the reading from the start of play", "ns")
    energy_mj: int | None = described("total energy counter of the driver", "mJ")
    power_mw: int | None = described("power draw", "mW")
    sm_clock_mhz: int | None = described("clock of the multiprocessors", "MHz")
    memory_clock_mhz: int | None = described("clock of the memory", "MHz")
    temperature_c: int | None = described("GPU temperature", "degC")
    throttle_reasons: int | None = described("NVML's bit mask of current clock event reasons")


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


class GpuInfo(Record):
    """One GPU as the driver describes it before the first cell."""

    index: int = described("index of the GPU")
    name: str = described("model")
    uuid: str = described("UUID")
    driver: str = described("driver version")
    memory_bytes: int = described("total memory", "bytes")
    max_sm_clock_mhz: int | None = described("highest clock of the multiprocessors", "MHz")
    max_memory_clock_mhz: int | None = described("highest clock of the memory", "MHz")
    power_limit_mw: int | None = described("enforced power limit", "mW")
    ecc: bool | None = described("error correction of the memory is on")


class Hardware(Record):
    """The machine."""

    cpu_model: str = described("model name by the kernel")
    cpu_cores: int = described("logical cores this process may use", "cores")
    memory_bytes: int = described("physical memory", "bytes")
    kernel: str = described("kernel release")
    gpus: list[GpuInfo] = described("GPUs, empty when there is no NVIDIA driver")


class Source(Record):
    """The code that measured."""

    origin: Literal["git", "source file", "unknown"] = described(
        "where the next fields come from: git, or .source.json of a checkout carried to a box without it"
    )
    git_commit: str = described("commit, or unknown")
    dirty: bool = described("true when code differs from that commit, or when that is not known")
    diff_sha256: str | None = described("SHA-256 of dirty.diff; empty when clean or not known")
    changed_since: list[str] = described("files that differ from what .source.json lists")
    lock_sha256: str = described("SHA-256 of uv.lock, or unknown")


class Environment(Record):
    """An interpreter that ran a part of the run, with what it imports."""

    python: str = described("interpreter; {checkout} stands for the root of the repository")
    import_paths: list[str] = described("folders put in front of its import path")
    given: bool = described("true when named with --env, false when made by the setup of this repository")
    python_version: str = described("version of the interpreter")
    packages: dict[str, str] = described("version of each package that matters")


class ServerLaunch(Record):
    """A server process that was started."""

    system: str = described("system")
    config: str = described("named configuration")
    version: str = described("version of the system")
    purpose: str = described("timed cells, or correctness")
    argv: list[str] = described("complete command line; {checkout} and {model} stand for folders")
    environment: dict[str, str] = described("what was added to its environment variables")
    startup_s: float | None = described("start to the first healthy answer; empty when it did not come", "s")
    log: str = described("its log file within the run")
    reason: str = described("what the configuration is for", default="")
    reasons: dict[str, str] = described(
        "why it differs from how a user starts it: the reason for each flag and variable", default={}
    )
    dtype: str = described("number format asked for", default="")
    max_model_len: int | None = described("context limit asked for", "tokens", default=None)
    memory_share: float | None = described(
        "share of the GPU's memory it was given; empty: its own default", default=None
    )
    prefix_cache: str = described("prefix cache of the configuration", default="")


class ModelInfo(Record):
    """The weights that were served."""

    name: str = described("model name")
    weights: str = described("real, random, or unknown")
    source: str = described("where the weights come from")
    sha256: dict[str, str] = described("SHA-256 of each file of the model folder")
    shape: dict[str, int] = described(
        "layers, hidden, heads, kv_heads, head_dim, intermediate, vocab, tied (0 or 1); empty when not known",
        default={},
    )


class ScheduleInfo(Record):
    """A schedule file of the run."""

    file: str = described("path within the run")
    sha256: str = described("SHA-256 of its bytes, uncompressed")


class ClientCeiling(Record):
    """What the load generator reaches against a flat-out null server on this machine."""

    events_per_s: float = described("events received in the window", "events/s")
    events_per_read: float = described("events that came with one socket read", "events")
    workers: int = described("client processes", "processes")
    server_processes: int = described("processes of the null server", "processes")
    concurrency: int = described("streams kept open", "requests")
    tokens: int = described("tokens of each stream, one an event", "tokens")
    window_s: float = described("length of the window", "s")


class ReferenceCheck(Record):
    """The comparison behind correctness.csv."""

    prompts: int = described("prompts compared")
    identical: int = described("prompts with identical output")
    max_tokens: int = described("most new tokens a prompt", "tokens")
    device: str = described("device of the reference")
    dtype: str = described("number format of the reference")
    attention: str = described("attention implementation of the reference")
    packages: dict[str, str] = described("versions behind the reference")
    wall_s: float = described("time the reference took, loading included", "s")
    system_dtype: str = described("number format of the systems", default="float32")
    min_identical: float = described("least share of identical prompts, of each system", default=1.0)
    min_forced_agreement: float | None = described(
        "least teacher-forced agreement, of each system; empty when not asked for", default=None
    )
    identical_share: float | None = described("identical / prompts", default=None)
    forced_agreement: float | None = described("sum of forced_agree / sum of forced_tokens", default=None)


class CellRecord(Record):
    """What was declared for a cell and what surrounded it. With the raw rows it determines the cell's row."""

    cell: str = described("content address of the cell")
    name: str = described("name in the stage file")
    system: str = described("system")
    system_version: str = described("version of the system")
    config: str = described("named configuration")
    prefix_cache: str = described("prefix cache of the configuration")
    dtype: str = described("number format")
    device: str = described("cpu or cuda")
    num_gpus: int = described("GPUs used", "GPUs")
    workload: str = described("what the prompts and lengths are")
    load: str = described("load shape")
    concurrency: int | None = described("closed loop: requests in flight", "requests")
    rate_rps: float | None = described("open loop: offered rate", "requests/s")
    schedule_sha256: str = described("schedule that was played")
    repetition: int = described("number of the repetition, from 0")
    position: int = described("place in the order of the run, from 0")
    started_at: str = described("start of play, UTC")
    startup_s: float = described("start-up time of the server", "s")
    schedule_exhausted: bool = described("a closed loop came to the end of its list while it was to run on")
    failure: str | None = described("why the server could not be measured, if it could not")
    window_start_ns: int = described("start of the window, from the start of play", "ns")
    window_end_ns: int = described("end of the window (exclusive)", "ns")
    slo_ttft_ms: float | None = described("limit of TTFT", "ms")
    slo_tpot_ms: float | None = described("limit of TPOT", "ms")
    ceiling_events_per_s: float | None = described("ceiling of the client", "events/s")
    correctness_identical: bool | None = described(
        "the system's correctness check, if it had one, found no less agreement than declared"
    )
    undeclared_gpu_processes: list[str] = described("processes on the GPU that are not part of the run")
    limits: dict[str, float] = described("limits of the verdict")
    session: int = described("part of the run that measured it", default=0)
    load_label: str = described("the load in words", default="")
    memory_share: float | None = described(
        "share of the GPU's memory that the server was given", default=None
    )
    residents: list[str] = described("servers in memory, frozen meanwhile", default=[])
    counters_before: dict[str, float] | None = described(
        "the server's own counters before the play; empty when they could not be read", default=None
    )
    counters_after: dict[str, float] | None = described("and after it", default=None)
    events_stride: int = described("every how-manieth request has its events kept", default=1)
    shares_prefixes: bool = described("prompts of the workload have common prefixes", default=False)
    client_stall_ms: float | None = described(
        "longest time that a client process did not run when it was to; empty in older runs",
        "ms",
        default=None,
    )
    client_busy: float | None = described(
        "largest share of a core that a client process used; empty in older runs", default=None
    )
    verdict_rules: int = described("version of the rules of the verdict", default=1)


class Session(Record):
    """A part of a run that one process measured: a run that was killed or cut has one for each resumption."""

    created_at: str = described("start, UTC, ISO 8601")
    command: list[str] = described("arguments of the harness")
    source: Source = described("the code that measured")
    box: str = described("name of the machine")
    hardware: Hardware = described("the machine")
    environments: dict[str, Environment] = described("interpreters by name")
    client_ceiling: ClientCeiling | None = described("ceiling of the load generator")


class KneeSearch(Record):
    """A search for the highest rate that a system keeps up with, as the stage declares it."""

    name: str = described("name in the stage file; its cells are called NAME-RATErps")
    low_rps: float = described("lowest rate of the grid", "requests/s")
    high_rps: float = described("highest rate of the grid at most", "requests/s")
    ratio: float = described("ratio of neighbouring rates of the grid")
    repetitions: int = described("times each rate is tried")
    target_attainment: float = described("least attainment that counts as keeping up")


class Started(Record):
    """What a run in progress keeps besides its cells, so that another process can go on with it."""

    run: str = described("name of the run")
    stage: str = described("stage")
    stage_sha256: str = described("SHA-256 of the stage file")
    device: str = described("cpu or cuda")
    model: ModelInfo = described("the weights")
    sessions: list[Session] = described("the parts so far")
    servers: list[ServerLaunch] = described("servers started so far")
    correctness: list[CorrectnessRow] = described("answers compared so far")
    systems: list[str] = described("systems that are measured, with their configurations")
    agrees: dict[str, bool] = described("for each system checked, whether it agrees as declared")


class StoredFile(Record):
    """A file of the run."""

    path: str = described("path within the run")
    sha256: str = described("SHA-256 of its bytes")
    bytes: int = described("size", "bytes")


class Manifest(Record):
    """manifest.json: written last; a folder without it, or without complete = true, is not a run."""

    schema_version: int = described("version of this declaration")
    run: str = described("name of the run")
    stage: str = described("stage that was run")
    stage_sha256: str = described("SHA-256 of the stage file")
    created_at: str = described("start of the run, UTC, ISO 8601")
    finished_at: str = described("end of the run, UTC, ISO 8601")
    command: list[str] = described("arguments of the harness")
    source: Source = described("the code that measured")
    box: str = described("name of the machine")
    hardware: Hardware = described("the machine")
    environments: dict[str, Environment] = described("interpreters: project, vllm, sglang")
    servers: list[ServerLaunch] = described("every server that was started")
    model: ModelInfo = described("the weights")
    schedules: list[ScheduleInfo] = described("the schedules that were played")
    client_ceiling: ClientCeiling | None = described("ceiling of the load generator")
    reference_check: ReferenceCheck | None = described("comparison with transformers")
    cells: list[CellRecord] = described("declaration and surroundings of each cell")
    files: list[StoredFile] = described("each file of the run with its checksum")
    logs: list[StoredFile] = described("logs; they may be absent in a clone, a changed one is damage")
    complete: bool = described("true only when everything above was written")
    later_sessions: list[Session] = described(
        "the parts after the first, which the fields above describe", default=[]
    )
    searches: list[KneeSearch] = described("searches behind knee.csv", default=[])
    planned_cells: int | None = described(
        "cells of the whole plan; more than there are: it was cut", default=None
    )


TABLES: dict[str, type[Record]] = {
    "serving.csv": ServingRow,
    "requests.csv.gz": RequestRow,
    "events.csv.gz": EventRow,
    "correctness.csv": CorrectnessRow,
    "gpu_samples.csv.gz": GpuSampleRow,
    "received.csv.gz": ReceivedRow,
    "knee.csv": KneeRow,
    "steps.csv": StepsRow,
    "profile.csv": ProfileRow,
    "step_times.csv.gz": StepTimeRow,
    "kernels.csv.gz": KernelRow,
    "attention.csv": AttentionRow,
    "attention_samples.csv.gz": AttentionSampleRow,
}
MANIFEST_PARTS: tuple[type[Record], ...] = (
    Manifest,
    Source,
    Hardware,
    GpuInfo,
    Environment,
    ServerLaunch,
    ModelInfo,
    ScheduleInfo,
    ClientCeiling,
    ReferenceCheck,
    CellRecord,
    KneeSearch,
    Session,
    StoredFile,
)


def column_names(row: type[Record]) -> list[str]:
    """Columns of a table in their order."""
    return list(row.model_fields)


def unit_of(field: FieldInfo) -> str:
    """Unit a field was declared with, or ''."""
    extra = field.json_schema_extra
    return str(extra.get("unit", "")) if isinstance(extra, dict) else ""


def _markdown_table(row: type[Record], heading: str) -> str:
    lines = [f"#### {heading}", "", row.__doc__ or "", "", "| name | unit | meaning |", "| --- | --- | --- |"]
    lines += [
        f"| `{name}` | {unit_of(field)} | {field.description} |" for name, field in row.model_fields.items()
    ]
    return "\n".join(lines)


def markdown() -> str:
    """Every table and manifest part as markdown, ending in a newline; RUNBOOK.md holds exactly this text."""
    tables = [_markdown_table(row, f"`{file}`") for file, row in TABLES.items()]
    parts = [
        _markdown_table(part, "`manifest.json`" if part is Manifest else f"`manifest.json`: {part.__name__}")
        for part in MANIFEST_PARTS
    ]
    return "\n\n".join([*tables, *parts]) + "\n"
