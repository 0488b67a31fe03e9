"""The bytes of answers: server-sent events spliced from parts made once per request, and whole JSON bodies.

An event costs one format: only its text is escaped and its usage numbers are written out when it is made.
"""

import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any

from engine.serving.http.choice import Choice
from engine.serving.http.logprobs import TokenNames, chat_logprobs, completion_logprobs
from engine.serving.http.timeline import Token

DONE = b"data: [DONE]\n\n"
_FINISH = {None: "null", "stop": '"stop"', "length": '"length"'}


@dataclass(frozen=True)
class Dialect:
    """What tells the endpoints' answers apart. first, later: what precedes the text in an event's choice."""

    id_prefix: str
    event_object: str
    whole_object: str
    first: str
    later: str
    after: str
    logprobs: Callable[[TokenNames, list[Token], int, int], dict[str, Any]]


COMPLETION = Dialect(
    "cmpl-", "text_completion", "text_completion", '"text":', '"text":', "", completion_logprobs
)
CHAT = Dialect(
    "chatcmpl-",
    "chat.completion.chunk",
    "chat.completion",
    '"delta":{"role":"assistant","content":',
    '"delta":{"content":',
    "}",
    chat_logprobs,
)


@dataclass(slots=True)
class Usage:
    """Tokens of a whole request, over all its choices. cached: prompt tokens whose KV was found in the
    cache."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0

    def json(self) -> str:
        return (
            f'{{"prompt_tokens":{self.prompt},"completion_tokens":{self.completion},'
            f'"total_tokens":{self.prompt + self.completion},'
            f'"prompt_tokens_details":{{"cached_tokens":{self.cached}}}}}'
        )


class Frames:
    """The answer of one request in one dialect.

    include_usage: a last event with the usage, and `"usage":null` before it as OpenAI has it;
    continuous_usage: the usage up to there in every event.
    """

    def __init__(
        self, dialect: Dialect, model: str, names: TokenNames, include_usage: bool, continuous_usage: bool
    ) -> None:
        self._dialect = dialect
        self._names = names
        self._include_usage = include_usage
        self._continuous_usage = continuous_usage
        self._head = {"id": f"{dialect.id_prefix}{uuid.uuid4().hex}", "object": dialect.event_object}
        self._head |= {"created": int(time.time()), "model": model}
        self._no_usage = ',"usage":null' if include_usage else ""
        self._open = f"data: {_compact(self._head)[:-1]},"

    def event(self, choice: Choice, usage: Usage) -> bytes:
        """One event with what is new of a choice."""
        dialect = self._dialect
        before = dialect.later if choice.taken_before else dialect.first
        first = not choice.taken_before
        text, tokens = choice.take()
        logprobs = _compact(self._logprobs(choice, tokens)) if tokens else "null"
        ids = _fields(_ids(choice, tokens, first)) if choice.wishes.token_ids else ""
        usage_so_far = f',"usage":{usage.json()}' if self._continuous_usage else self._no_usage
        return (
            f'{self._open}"choices":[{{"index":{choice.index},{before}{encode_basestring(text)}{dialect.after},'
            f'"logprobs":{logprobs},"finish_reason":{_FINISH[choice.finish]}{ids}}}]{usage_so_far}}}\n\n'
        ).encode()

    def end(self, usage: Usage) -> bytes:
        """What follows the last choice's last event."""
        if not self._include_usage:
            return DONE
        return f'{self._open}"choices":[],"usage":{usage.json()}}}\n\n'.encode() + DONE

    def whole(self, choices: list[Choice], usage: Usage) -> bytes:
        """The body of a plain answer."""
        head = self._head | {"object": self._dialect.whole_object}
        bodies = [self._whole_choice(choice) for choice in choices]
        return json.dumps(head | {"choices": bodies, "usage": json.loads(usage.json())}).encode()

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        text, tokens = choice.take()
        ids = _ids(choice, tokens, first=True) if choice.wishes.token_ids else {}
        logprobs = self._logprobs(choice, tokens)
        chat = self._dialect is CHAT
        content = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        return {"index": choice.index, **content, "logprobs": logprobs, "finish_reason": choice.finish, **ids}

    def _logprobs(self, choice: Choice, tokens: list[Token]) -> dict[str, Any] | None:
        count = choice.params.logprobs
        return None if count is None else self._dialect.logprobs(self._names, tokens, choice.shown, count)


def error_event(body: bytes) -> bytes:
    """An error that comes after the stream has begun; the stream ends with it."""
    return b"data: %b\n\n" % body


def _ids(choice: Choice, tokens: list[Token], first: bool) -> dict[str, list[int]]:
    ids = {"token_ids": [token.id for token in tokens if token.generated]}
    return {"prompt_token_ids": choice.prompt_ids} | ids if first else ids


def _fields(fields: dict[str, list[int]]) -> str:
    return "".join(f',"{name}":{_compact(value)}' for name, value in fields.items())


def _compact(content: object) -> str:
    return json.dumps(content, separators=(",", ":"))
