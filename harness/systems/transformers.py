"""transformers, through its own server (`transformers serve`). Unmeasured: the harness cannot time it yet.

It needs packages that the project does not have (fastapi, starlette: `transformers[serving]`); give an
interpreter that has them, --env project=PYTHON[:IMPORT_PATH]. Tried with 5.24.0 on a CPU, by hand:

- it starts, /health and /v1/models answer, and it streams an event a token with max_tokens honoured and usage
  in the last event, whether or not stream_options ask for it;
- a request with `ignore_eos` or `return_token_ids` is refused (422, unexpected fields), and so is a prompt of
  token ids (400): every request of a stage that asks for exact lengths is an http_error;
- without `ignore_eos` it ends at the end of sequence, and no stream ends with [DONE]: each is `truncated`;
- the model's name in a request must be the path it was started with.
"""

from harness.systems.base import Configuration, Setting, System, Target, package_version
from harness.systems.environment import PROJECT


def _command(target: Target, port: int) -> list[str]:
    return [
        "-m", "transformers.cli.transformers", "serve", str(target.model_dir),
        "--host", "127.0.0.1",
        "--port", str(port),
        "--device", target.device,
        "--dtype", target.dtype,
    ]  # fmt: skip


def _path(target: Target) -> str:
    return str(target.model_dir)


TRANSFORMERS = System(
    name="transformers",
    environment=PROJECT,
    devices=frozenset({"cpu", "cuda"}),
    configurations={
        "default": Configuration("as its documentation starts it"),
        "continuous-batching": Configuration(
            "the nearest that it has to the other systems",
            (Setting("requests share steps, on a paged KV cache", ("--continuous-batching",)),),
        ),
    },
    command=_command,
    version=package_version("transformers"),
    served_name=_path,
    usual_startup_s=20.0,
    variables={"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"},
)
