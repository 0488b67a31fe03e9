"""TensorRT-LLM 1.2.1, through `trtllm-serve` with its PyTorch backend. Unmeasured: it has not run here.

It needs an environment of its own: .venv-tensorrt_llm of the checkout, or --env tensorrt_llm=PYTHON. Flags
were read in a source tree near that version (tensorrt_llm/commands/serve.py), none was tried. Its /metrics
is JSON about steps, no text of counters. A model is called as its folder is.
"""

from harness.systems.base import Configuration, System, Target, package_version
from harness.systems.memory import CONTEXT_SHARE, check_share, shown_share


def _command(target: Target, port: int) -> list[str]:
    return [
        "-m", "tensorrt_llm.commands.serve", "serve", str(target.model_dir),
        "--backend", "pytorch",
        "--host", "127.0.0.1",
        "--port", str(port),
        "--max_seq_len", str(target.max_model_len),
    ]  # fmt: skip


def _memory_flags(share: float, free_share: float) -> list[str]:
    """--free_gpu_memory_fraction is a share of what is free once the weights are there, for the KV cache. The
    weights, not known here, come on top: share / (free_share - CONTEXT_SHARE), right for small models.
    """
    check_share(share, free_share)
    return ["--free_gpu_memory_fraction", shown_share(share / (free_share - CONTEXT_SHARE))]


def _folder_name(target: Target) -> str:
    return target.model_dir.name


TENSORRT_LLM = System(
    name="tensorrt-llm",
    environment="tensorrt_llm",
    devices=frozenset({"cuda"}),
    configurations={"default": Configuration("as its documentation starts it")},
    command=_command,
    version=package_version("tensorrt-llm"),
    memory_flags=_memory_flags,
    served_name=_folder_name,
    ready_limit_s=600.0,
    usual_startup_s=180.0,
    variables={"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"},
)
