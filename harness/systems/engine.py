"""The engine of this repository."""

from harness.systems.base import Configuration, System, Target, project_version
from harness.systems.environment import PROJECT


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


ENGINE = System(
    name="engine",
    environment=PROJECT,
    devices=frozenset({"cpu", "cuda"}),
    configurations={"default": Configuration(reason="as a user starts it", prefix_cache="on")},
    command=_command,
    version=project_version,
    runs_in_checkout=True,
)
