"""vLLM, through its OpenAI-compatible server module."""

from harness.systems.base import Configuration, System, Target, package_version


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


VLLM = System(
    name="vllm",
    environment="vllm",
    devices=frozenset({"cuda"}),
    configurations={"default": Configuration(reason="as its documentation starts it", prefix_cache="on")},
    command=_command,
    version=package_version("vllm"),
    usual_startup_s=130.0,
    variables={"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"},
)
