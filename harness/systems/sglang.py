"""SGLang, through its server module."""

from harness.systems.base import Configuration, System, Target, package_version


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


SGLANG = System(
    name="sglang",
    environment="sglang",
    devices=frozenset({"cuda"}),
    configurations={"default": Configuration(reason="as its documentation starts it", prefix_cache="on")},
    command=_command,
    version=package_version("sglang"),
    usual_startup_s=100.0,
    variables={"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"},
)
