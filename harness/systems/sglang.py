"""SGLang 0.5.16, through its server module.

Flags, defaults and what they do were read in its source: sglang/srt/server_args.py, managers/scheduler.py,
managers/tokenizer_manager.py, mem_cache/kv_cache_configurator.py, observability/metrics_collector.py.

`same_features` has what the engine's feature table has (engine/README.md). By default it already has the
prefix cache, chunked prefill, steps queued ahead (the overlap scheduler), one tokenizer process, no
torch.compile and no speculation, and there are only flags to turn these off. On purpose it still differs
in: fused and paged attention kernels; graphs for sampled decodes too; its own sizes (8,192 tokens a chunk;
graphs of up to 256 sequences on an H200, as the engine); a process each for tokenizer, scheduler and
detokenizer where the engine has two; requests with log probabilities, whose prompt chunks and decodes stay
apart.

`tuned` is pinned by a run of the stage `tune`; no flag of SGLang has been measured yet, so it is its
default.

Not among the candidates: --num-continuous-decode-steps, which 0.5.16 still takes but no code reads; and
--incremental-streaming-output, with which /v1/completions loses text: it goes on cutting from each piece
what it takes for the text so far (stream_offsets in entrypoints/openai/serving_completions.py).

/metrics is there with --enable-metrics only, which observes histograms in Python for every event of every
request: it costs time where the front end is busy, so that no configuration but `counted` has it.
"""

from harness.systems.base import (
    Configuration,
    PrefixCache,
    ServerError,
    Setting,
    System,
    Target,
    package_version,
)
from harness.systems.memory import CONTEXT_SHARE, check_share, shown_share

# What a server uses beyond its static part: activations of a step and CUDA graphs. 4.2 GiB of an H200.
WORKING_SHARE = 0.03


def _command(target: Target, port: int) -> list[str]:
    return [
        "-m", "sglang.launch_server",
        "--model-path", str(target.model_dir),
        "--served-model-name", target.model_name,
        "--host", "127.0.0.1",
        "--port", str(port),
        "--dtype", target.dtype,
        "--context-length", str(target.max_model_len),
    ]  # fmt: skip


def _memory_flags(share: float, free_share: float) -> list[str]:
    """--mem-fraction-static is a share of what is free once the context is there, for weights and KV cache:
    SGLang keeps (1 - fraction) of that free (kv_cache_configurator.py, _profile_available_bytes).

    fraction = (share - WORKING_SHARE) / (free_share - CONTEXT_SHARE)
    """
    check_share(share, free_share)
    if share <= WORKING_SHARE:
        raise ServerError(
            f"a share of {share:g} of the GPU's memory leaves no KV cache: {WORKING_SHARE:g} is for steps"
        )
    return ["--mem-fraction-static", shown_share((share - WORKING_SHARE) / (free_share - CONTEXT_SHARE))]


_MIXED = Setting(
    "prompt chunks and decodes in one step, as in the engine; apart by default", ("--enable-mixed-chunk",)
)
_DECODE_GRAPHS = Setting(
    "CUDA graphs for batches of decodes only, as in the engine; prompts have their own by default",
    ("--cuda-graph-backend-prefill", "disabled"),
)
_INTERVAL = Setting("an event of 10 tokens instead of 10 events", ("--stream-interval", "10"))
_TOKENIZERS = Setting("four front-end processes for HTTP and tokenizing", ("--tokenizer-worker-num", "4"))
_DETOKENIZERS = Setting("two processes that turn ids into text", ("--detokenizer-worker-num", "2"))
_GRAPHS = Setting(
    "graphs for up to 512 sequences; 256 by default on an H200, more run eagerly",
    ("--cuda-graph-max-bs-decode", "512"),
)
_NO_RADIX = Setting(
    "no tree of prompts that share no prefix; not comparable where they do", ("--disable-radix-cache",)
)
_METRICS = Setting("cached tokens and preemptions can be read", ("--enable-metrics",))


def _candidate(*settings: Setting, prefix_cache: PrefixCache = "on") -> Configuration:
    return Configuration("candidate of the stage `tune`", settings, prefix_cache)


SGLANG = System(
    name="sglang",
    environment="sglang",
    devices=frozenset({"cuda"}),
    configurations={
        "default": Configuration("as its documentation starts it", prefix_cache="on"),
        "same_features": Configuration(
            "the feature set of the engine: what is left is how well each of them is done",
            (_MIXED, _DECODE_GRAPHS),
            prefix_cache="on",
        ),
        "tuned": Configuration("the fastest that is known, see above", prefix_cache="on"),
        "counted": Configuration("default with its counters", (_METRICS,), prefix_cache="on"),
        "tune-stream-interval": _candidate(_INTERVAL),
        "tune-tokenizers": _candidate(_TOKENIZERS),
        "tune-mixed-chunk": _candidate(_MIXED),
        "tune-graphs": _candidate(_GRAPHS),
        "tune-no-radix": _candidate(_NO_RADIX, prefix_cache="off"),
        "tune-workers": _candidate(_TOKENIZERS, _DETOKENIZERS),
        "tune-all": _candidate(_INTERVAL, _TOKENIZERS, _DETOKENIZERS, _GRAPHS),
    },
    command=_command,
    version=package_version("sglang"),
    memory_flags=_memory_flags,
    counters={
        "cached_tokens": "sglang:cached_tokens_total",
        "preemptions": "sglang:num_retracted_requests_total",
    },
    usual_startup_s=100.0,
    variables={"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"},
)
