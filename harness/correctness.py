"""Greedy output of a running system against transformers, prompt by prompt."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeVar

from harness.schema import CorrectnessRow
from harness.systems.environment import Interpreter
from harness.workload.prompts import load_prompts
from harness.workload.schedule import Schedule, ScheduledRequest

ANSWER_TIMEOUT_S = 120.0
Q = TypeVar("Q")
A = TypeVar("A")


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


@dataclass(frozen=True)
class Forced:
    """How a system scored the reference's continuation of one prompt: the number of tokens, and of those that
    are the system's most likely ones too. Both None where it was not asked, or failed with `error`.
    """

    tokens: int | None
    agree: int | None
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
    return _each(lambda request: _ask_one(url, model, request), schedule.requests, schedule, on_answer)


def force(
    url: str, model: str, schedule: Schedule, reference: dict[str, Any], on_answer: Callable[[int], None]
) -> list[Forced]:
    """Teacher forcing of every prompt: the system scores the reference's tokens, as a part of its prompt.

    So each position is asked for after the reference's own tokens, and one near-tie does not decide the rest.
    """
    return _each(lambda answer: _force_one(url, model, answer), reference["answers"], schedule, on_answer)


def _each(
    one: Callable[[Q], A], questions: Sequence[Q], schedule: Schedule, on_answer: Callable[[int], None]
) -> list[A]:
    answers: list[A] = []
    with ThreadPoolExecutor(schedule.concurrency) as pool:
        for answer in pool.map(one, questions):
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
    try:
        answer = _completion(url, body)
        choice = answer["choices"][0]
        return Answer(
            choice["text"], choice.get("token_ids"), choice["finish_reason"], answer["usage"]["prompt_tokens"]
        )
    except (OSError, ValueError, LookupError, TypeError, HTTPException) as error:
        return Answer("", None, None, None, error=_reason(error))


def _force_one(url: str, model: str, expected: dict[str, Any]) -> Forced:
    prompt_ids, ids = expected["prompt_ids"], expected["ids"]
    if not ids:
        return Forced(0, 0)
    body = {
        "model": model,
        "prompt": prompt_ids + ids,
        "max_tokens": 0,
        "temperature": 0,
        "echo": True,
        "logprobs": 1,
    }
    try:
        logprobs = _completion(url, body)["choices"][0]["logprobs"]
        return count_agreement(logprobs, len(prompt_ids), len(ids))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        return Forced(None, None, error=f"teacher forcing: {_reason(error)}")


def count_agreement(logprobs: dict[str, Any], prompt_tokens: int, tokens: int) -> Forced:
    """Agreement at the last `tokens` of an echoed prompt, from `logprobs` of a completion.

    A position agrees where its token's log probability is the best of top_logprobs: a tie agrees, since the
    order of equal ones says nothing. Raises ValueError where there is not a value for each position.
    """
    given = logprobs["token_logprobs"]
    best = logprobs["top_logprobs"]
    if not len(given) == len(best) == prompt_tokens + tokens:
        raise ValueError(
            f"{len(given)} and {len(best)} log probabilities for {prompt_tokens} + {tokens} tokens"
        )
    scored = zip(given[prompt_tokens:], best[prompt_tokens:], strict=True)
    return Forced(tokens, sum(logprob >= max(top.values()) for logprob, top in scored))


def _completion(url: str, body: dict[str, Any]) -> dict[str, Any]:
    post = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(post, timeout=ANSWER_TIMEOUT_S) as response:
        return json.load(response)


def _reason(error: Exception) -> str:
    detail = error.read().decode(errors="replace") if isinstance(error, urllib.error.HTTPError) else ""
    return f"{error} {detail}".strip()


def not_answered(reference: dict[str, Any], error: str) -> list[Answer]:
    """One failed answer a prompt, for a system that did not come up."""
    return [Answer("", None, None, None, error) for _ in reference["answers"]]


def compared(
    system: str,
    reference: dict[str, Any],
    answers: Sequence[Answer],
    end_ids: set[int],
    forced: Sequence[Forced] | None = None,
) -> list[CorrectnessRow]:
    """The rows of correctness.csv for a system; the prompts are the first ones of the prompt file."""
    prompts = load_prompts()[: len(answers)]
    scored = forced if forced is not None else [Forced(None, None)] * len(answers)
    return [
        compare(system, prompt.id, expected, answer, end_ids, score)
        for prompt, expected, answer, score in zip(
            prompts, reference["answers"], answers, scored, strict=True
        )
    ]


def compare(
    system: str,
    prompt: str,
    reference: dict[str, Any],
    answer: Answer,
    end_ids: set[int],
    forced: Forced = Forced(None, None),
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
        error=answer.error or forced.error,
        forced_tokens=forced.tokens,
        forced_agree=forced.agree,
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
