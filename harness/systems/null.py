"""The null server: no model, known times. For tests of the harness."""

from harness.systems.base import Configuration, System, Target, project_version
from harness.systems.environment import PROJECT


def _command(target: Target, port: int) -> list[str]:
    return ["-m", "harness.client.null_server", "--host", "127.0.0.1", "--port", str(port)]


NULL = System(
    name="null",
    environment=PROJECT,
    devices=frozenset({"cpu", "cuda"}),
    configurations={
        "default": Configuration(
            reason="paced like a fast model: what a client must measure is known",
            flags=("--ttft-ms", "20", "--tpot-ms", "5"),
            prefix_cache="off",
        ),
        "flat-out": Configuration(reason="as fast as the client takes it", prefix_cache="off"),
    },
    command=_command,
    version=project_version,
    usual_startup_s=1.0,
    runs_in_checkout=True,
)
