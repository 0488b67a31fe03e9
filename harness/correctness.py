"""Greedy output of a running system against transformers, prompt by prompt."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.schema import CorrectnessRow
from harness.systems.environment import Interpreter
from harness.workload.prompts import load_prompts
from harness.workload.schedule import Schedule, ScheduledRequest

ANSWER_TIMEOUT_S = 120.0


class CorrectnessError(Exception):
    """The reference could not be made; the message says why."""


@dataclass(frozen=True)
class Answer:
    """What a system returned for one prompt.

    `ids` is None when it returns no token ids, `error` None when it answered.
    """

    text: str
    ids: list[int] | None
    finish: str | None
    prompt_tokens: int | None
    error: str | None = None


def run_reference(
    interpreter: Interpreter, model_dir: Path, schedule: Path, logs: Path, device: str, root: Path
) -> dict[str, Any]:
    """Runs harness.reference in a process of its own; its answers stay in `logs` as reference.json.

    Raises CorrectnessError when it fails.
    """
    out, log = logs / "reference.json", logs / "reference.log"
    command = [str(interpreter.python), "-m", "harness.reference", "--model", str(model_dir)]
    command += ["--schedule", str(schedule.absolute()), "--out", str(out.absolute()), "--device", device]
    environment = interpreter.process_environment() | {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    with log.open("wb") as output:
        status = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, cwd=root
        ).returncode
    if status != 0:
        last = log.read_text(errors="replace").strip().splitlines()[-5:]
        raise CorrectnessError("\n".join([f"reference ended with status {status}, see {log}:", *last]))
    return json.loads(out.read_bytes())


def ask(url: str, model: str, schedule: Schedule, on_answer: Callable[[int], None]) -> list[Answer]:
    """Plain greedy completions of every prompt, several at once, in the order of the schedule.

    `on_answer` gets the number of answers so far.
    """
    answers: list[Answer] = []
    with ThreadPoolExecutor(schedule.concurrency) as pool:
        for answer in pool.map(lambda request: _ask_one(url, model, request), schedule.requests):
            answers.append(answer)
            on_answer(len(answers))
    return answers


def _ask_one(url: str, model: str, request: ScheduledRequest) -> Answer:
    body = {
        "model": model,
        "prompt": request.prompt,
        "max_tokens": request.max_tokens,
        "temperature": 0,
        "return_token_ids": True,
    }
    post = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(post, timeout=ANSWER_TIMEOUT_S) as response:
            answer = json.load(response)
        choice = answer["choices"][0]
        return Answer(
            choice["text"], choice.get("token_ids"), choice["finish_reason"], answer["usage"]["prompt_tokens"]
        )
    except (OSError, ValueError, LookupError) as error:
        detail = error.read().decode(errors="replace") if isinstance(error, urllib.error.HTTPError) else ""
        return Answer("", None, None, None, error=f"{error} {detail}".strip())


def not_answered(reference: dict[str, Any], error: str) -> list[Answer]:
    """One failed answer a prompt, for a system that did not come up."""
    return [Answer("", None, None, None, error) for _ in reference["answers"]]


def compared(
    system: str, reference: dict[str, Any], answers: Sequence[Answer], end_ids: set[int]
) -> list[CorrectnessRow]:
    """The rows of correctness.csv for a system; the prompts are the first ones of the prompt file."""
    prompts = load_prompts()[: len(answers)]
    return [
        compare(system, prompt.id, expected, answer, end_ids)
        for prompt, expected, answer in zip(prompts, reference["answers"], answers, strict=True)
    ]


def compare(
    system: str, prompt: str, reference: dict[str, Any], answer: Answer, end_ids: set[int]
) -> CorrectnessRow:
    """One row: token ids when the system returns them, text, ending, and length of the prompt.

    An end-of-sequence token at the end of the system's ids is not compared: servers differ in returning it.
    """
    expected: list[int] = reference["ids"]
    ids = answer.ids
    if ids and ids[-1] in end_ids and answer.finish == "stop":
        ids = ids[:-1]
    same_text = answer.error is None and answer.text == reference["text"]
    same_ids = ids is None or ids == expected
    same_prompt = answer.prompt_tokens == reference["prompt_tokens"]
    divergence = first_difference(expected, ids) if ids is not None else None
    gaps: list[float] = reference["gaps"]
    return CorrectnessRow(
        system=system,
        prompt=prompt,
        identical=same_text and same_ids and same_prompt and answer.finish == reference["finish"],
        first_divergence=divergence,
        gap_at_divergence=gaps[divergence] if divergence is not None and divergence < len(gaps) else None,
        tokens=len(expected),
        reference_finish=reference["finish"],
        system_finish=answer.finish,
        text_identical=same_text,
        reference_ids=" ".join(map(str, expected)),
        system_ids=" ".join(map(str, ids or [])),
        error=answer.error,
    )


def first_difference(expected: list[int], found: list[int]) -> int | None:
    """Position of the first difference, None for equal lists. Where one continues the other: its end."""
    for position, (left, right) in enumerate(zip(expected, found, strict=False)):
        if left != right:
            return position
    return None if len(expected) == len(found) else min(len(expected), len(found))


def end_token_ids(model_dir: Path) -> set[int]:
    """End-of-sequence ids of a HuggingFace folder: generation_config.json, else config.json."""
    for name in ("generation_config.json", "config.json"):
        if (model_dir / name).is_file():
            ends = json.loads((model_dir / name).read_bytes()).get("eos_token_id")
            if ends is not None:
                return set(ends) if isinstance(ends, list) else {ends}
    return set()
