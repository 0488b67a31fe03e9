"""The null server: no model, known times. For tests of the harness."""

from harness.systems.base import Configuration, Setting, System, Target, project_version
from harness.systems.environment import PROJECT


def _command(target: Target, port: int) -> list[str]:
    return ["-m", "harness.client.null_server", "--host", "127.0.0.1", "--port", str(port)]


_PACED = (
    Setting("a prompt's time of a small model", ("--ttft-ms", "20")),
    Setting("a step's time of a small model", ("--tpot-ms", "5")),
)

NULL = System(
    name="null",
    environment=PROJECT,
    devices=frozenset({"cpu", "cuda"}),
    configurations={
        "default": Configuration(
            "paced like a fast model: what a client must measure is known",
            _PACED,
            prefix_cache="off",
        ),
        "again": Configuration("the default under another name: A against A", _PACED, prefix_cache="off"),
        "slower": Configuration(
            "5 % slower than the default: a difference that must be told apart",
            (
                Setting("1.05 times the default's", ("--ttft-ms", "21")),
                Setting("1.05 times the default's", ("--tpot-ms", "5.25")),
            ),
            prefix_cache="off",
        ),
        "flat-out": Configuration("as fast as the client takes it", prefix_cache="off"),
    },
    command=_command,
    version=project_version,
    usual_startup_s=1.0,
    runs_in_checkout=True,
)
