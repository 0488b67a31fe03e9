"""Tables of runs that play schedules to servers: what clients saw, and what the runs sum it up to."""

from __future__ import annotations

from typing import Literal

from harness.schema.record import Record, described

RequestStatus = Literal["ok", "http_error", "stream_error", "timeout", "reset", "truncated", "mismatch"]


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
