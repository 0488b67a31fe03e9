"""The engine of this repository."""

from harness.systems.base import Configuration, Setting, System, Target, project_version
from harness.systems.environment import PROJECT
from harness.systems.memory import check_share, shown_share


def _command(target: Target, port: int) -> list[str]:
    return [
        "-m", "engine", "serve",
        "--model", str(target.model_dir),
        "--served-model-name", target.model_name,
        "--host", "127.0.0.1",
        "--port", str(port),
        "--device", target.device,
        "--dtype", target.dtype,
        "--max-model-len", str(target.max_model_len),
    ]  # fmt: skip


def _memory_flags(share: float, free_share: float) -> list[str]:
    """--gpu-memory-share bounds everything that is in use on the GPU, what others hold included (see
    engine.serving.startup): share + (1 - free_share).
    """
    check_share(share, free_share)
    return ["--gpu-memory-share", shown_share(share + 1 - free_share)]


_PRESETS = {
    "eager": "gathered steps with PyTorch attention, one at a time, prompts and decodes in separate steps",
    "fused": "eager, and paged attention, rotation and KV write in Triton kernels over padded shapes",
    "graph": "fused, and each step is launched as one CUDA graph",
    "queued": "graph, and a step is queued before the results of the one before it are read",
    "full": "queued, and prompt chunks share steps with decodes: what a user gets, said by name",
}
"""The engine's presets (engine.config.PRESETS), each one step more than the one before it."""


ENGINE = System(
    name="engine",
    environment=PROJECT,
    devices=frozenset({"cpu", "cuda"}),
    configurations={
        "default": Configuration("as a user starts it", prefix_cache="on"),
        "no-prefix-cache": Configuration(
            "what prefix reuse costs where there is nothing to reuse, and gains where there is",
            (Setting("every prompt is computed in full", ("--no-prefix-cache",)),),
            prefix_cache="off",
        ),
        **{
            name: Configuration(
                f"what each step towards speed buys: {reason}",
                (Setting(reason, ("--preset", name)),),
                prefix_cache="on",
            )
            for name, reason in _PRESETS.items()
        },
    },
    command=_command,
    version=project_version,
    memory_flags=_memory_flags,
    counters={
        "cached_tokens": "ladder_prefix_cache_hit_tokens_total",
        "preemptions": "ladder_preemptions_total",
    },
    runs_in_checkout=True,
)
