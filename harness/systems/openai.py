"""Any OpenAI-compatible server that already runs, by its URL. Nothing is started, frozen or stopped."""

from __future__ import annotations

import json

from harness.base_url import split_base_url
from harness.errors import BadInput
from harness.systems.base import Configuration, System, Target
from harness.systems.environment import PROJECT
from harness.systems.fetch import UNREACHABLE, fetch

TIMEOUT_S = 10.0
SCHEMES = ("http://", "https://")


def openai_system(url: str) -> tuple[System, str]:
    """The server at http://HOST[:PORT][/PREFIX], with or without a closing /v1, and its configuration's name:
    HOST:PORT, with a prefix's slashes as dots. Raises BadInput for another URL.
    """
    try:
        host, port, prefix = split_base_url(url, "system")
    except ValueError as error:
        raise BadInput(str(error)) from error
    configuration = f"{host}:{port}{prefix.replace('/', '.')}"
    return System(
        name="openai",
        environment=PROJECT,
        devices=frozenset({"cpu", "cuda"}),
        configurations={configuration: Configuration("as it was started by somebody else")},
        command=_nothing_to_start,
        version=lambda _environment, _source: "unknown",
        url=f"http://{host}:{port}{prefix}",
        usual_startup_s=0.0,
    ), configuration


def _nothing_to_start(target: Target, port: int) -> list[str]:
    raise AssertionError("a server given by its URL is not started")


def served_model(url: str, wanted: str | None = None) -> str:
    """The model to ask a server for: `wanted`, or the only one it serves by GET /v1/models.

    Raises BadInput when it does not answer, does not say, serves several, or serves others than `wanted`.
    """
    try:
        status, body = fetch(url, "/v1/models", TIMEOUT_S)
    except UNREACHABLE as error:
        raise BadInput(f"{url} does not answer: {error}") from error
    names = _model_names(body) if status == 200 else None
    if names is None:
        if wanted is not None:
            return wanted
        raise BadInput(f"GET {url}/v1/models: status {status} and no list of models; name one with --model")
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted in names:
        return wanted
    if wanted is None:
        raise BadInput(f"{url} serves {', '.join(names) or 'no model'}; choose one with --model")
    raise BadInput(f"{url} serves {', '.join(names) or 'no model'}, not {wanted!r}")


def _model_names(body: bytes) -> list[str] | None:
    try:
        return [str(model["id"]) for model in json.loads(body)["data"]]
    except (ValueError, LookupError, TypeError):
        return None
