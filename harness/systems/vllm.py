"""vLLM 0.26.0, through its OpenAI-compatible server module.

Flags, defaults and what they do were read in its source: vllm/engine/arg_utils.py, vllm/config/,
vllm/entrypoints/cli/serve.py, vllm/envs.py, vllm/v1/metrics/loggers.py.

`same_features` has what the engine's feature table has (engine/README.md): prompt chunks and decodes in one
step, a prefix cache, steps queued ahead, CUDA graphs of decode steps, one HTTP process, no torch.compile,
no speculation. On purpose it still differs in: fused and paged attention kernels and other custom kernels,
which it has in no plain form; graphs for sampled decodes too; its own sizes (1,024 sequences and 8,192
tokens a step where the engine has 256 and 2,048).

`tuned` is pinned by a run of the stage `tune`; until then it is what an earlier measurement supports:
17,700 and 18,100 tok/s against 11,300 and 9,400 at concurrency 256 (llama-190m, one H200, two repetitions).

Not among the candidates: the Rust front end with --stream-interval; it refuses to start with that flag.
"""

from harness.systems.base import Configuration, PrefixCache, Setting, System, Target, package_version
from harness.systems.memory import check_share, shown_share

SERVE = ("-m", "vllm.entrypoints.cli.main", "serve")


def _command(target: Target, port: int) -> list[str]:
    return [
        "-m", "vllm.entrypoints.openai.api_server",
        "--model", str(target.model_dir),
        "--served-model-name", target.model_name,
        "--host", "127.0.0.1",
        "--port", str(port),
        "--dtype", target.dtype,
        "--max-model-len", str(target.max_model_len),
    ]  # fmt: skip


def _memory_flags(share: float, free_share: float) -> list[str]:
    """--gpu-memory-utilization is a share of the whole GPU for this server alone: what others hold does not
    count, but vLLM refuses to start where less than that is free once its context is there
    (vllm/v1/worker/utils.py, request_memory).
    """
    check_share(share, free_share)
    return ["--gpu-memory-utilization", shown_share(share)]


_DECODE_GRAPHS = Setting(
    "eager kernels, and CUDA graphs for batches of decodes only; compilation mode 0 is no torch.compile",
    ("--compilation-config", '{"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}'),
)
_ASYNC = Setting(
    "the engine queues steps ahead too; its default, but stated it is an error where it cannot be had",
    ("--async-scheduling",),
)
_PREFIX_CACHE = Setting("the engine has one; its default, stated", ("--enable-prefix-caching",))
_CHUNKS = Setting(
    "the engine mixes prompt chunks with decodes; its default, stated", ("--enable-chunked-prefill",)
)
_INTERVAL = Setting(
    "an event of 10 tokens instead of 10 events: the front end is what limits it from concurrency 64 on",
    ("--stream-interval", "10"),
)
_RUST = Setting(
    "HTTP and detokenization by the Rust front end that the package ships, off by default",
    variables={"VLLM_USE_RUST_FRONTEND": "1"},
    entry=SERVE,
)
_SERVERS = Setting(
    "four front-end processes; the server module by itself ignores the flag",
    ("--api-server-count", "4"),
    entry=SERVE,
)
_GRAPHS = Setting(
    "graphs for steps of up to 1,024 tokens, as many as it has sequences; 512 by default",
    ("--max-cudagraph-capture-size", "1024"),
)
_NO_STATS = Setting("no counting of statistics for each step and token", ("--disable-log-stats",))
_NO_PREFIX_CACHE = Setting(
    "no hashing of prompts that share no prefix; not comparable where they do",
    ("--no-enable-prefix-caching",),
)


def _candidate(*settings: Setting, prefix_cache: PrefixCache = "on") -> Configuration:
    return Configuration("candidate of the stage `tune`", settings, prefix_cache)


VLLM = System(
    name="vllm",
    environment="vllm",
    devices=frozenset({"cuda"}),
    configurations={
        "default": Configuration("as its documentation starts it", prefix_cache="on"),
        "same_features": Configuration(
            "the feature set of the engine: what is left is how well each of them is done",
            (_DECODE_GRAPHS, _ASYNC, _PREFIX_CACHE, _CHUNKS),
            prefix_cache="on",
        ),
        "tuned": Configuration("the fastest that is known, see above", (_INTERVAL,), prefix_cache="on"),
        "tune-stream-interval": _candidate(_INTERVAL),
        "tune-rust": _candidate(_RUST),
        "tune-api-servers": _candidate(_SERVERS),
        "tune-graphs": _candidate(_GRAPHS),
        "tune-lean": _candidate(_NO_STATS, _NO_PREFIX_CACHE, prefix_cache="off"),
        "tune-api-servers-interval": _candidate(_SERVERS, _INTERVAL),
        "tune-rust-lean": _candidate(_RUST, _GRAPHS, _NO_STATS),
        "tune-all": _candidate(_SERVERS, _INTERVAL, _GRAPHS, _NO_STATS),
    },
    command=_command,
    version=package_version("vllm"),
    memory_flags=_memory_flags,
    counters={
        "cached_tokens": "vllm:prefix_cache_hits_total",
        "preemptions": "vllm:num_preemptions_total",
    },
    usual_startup_s=130.0,
    variables={"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"},
)
