"""What manifest.json holds: everything that surrounded a run."""

from __future__ import annotations

from typing import Literal

from harness.schema.record import Record, described
from harness.schema.serving import CorrectnessRow


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
    reference_check: ReferenceCheck | None = described("comparison with transformers so far", default=None)
    searches: list[KneeSearch] = described("searches behind knee.csv", default=[])
    planned_cells: int | None = described("cells of the whole plan", default=None)


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
