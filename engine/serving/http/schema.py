"""The fields of the API's requests, checked strictly; every refusal names the field, its value and the limit.

Fields that are not known are ignored, as OpenAI-compatible servers do, unless they ask for something this
server cannot do: those of UNSUPPORTED are refused when their value is not one that asks for nothing.
`max_tokens` 0, which OpenAI allows for scoring a prompt with `echo`, is refused as long as there is no
`echo`.
"""

import random
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from engine.serving.http.errors import ApiError, shown
from engine.serving.request import SamplingParams

MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1024
_INT64 = 1 << 63

UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": (),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "cache_salt": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "image_data": (),
    "images": ([],),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "n": (1,),
    "presence_penalty": (0,),
    "priority": (0,),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "stop_regex": (),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
}
"""Capabilities this server lacks, with the values (null beside them) that ask for nothing."""

Prompt = str | list[int]


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and set(map(type, value)) == {int}


def _prompts(value: object) -> list[Prompt]:
    if isinstance(value, str) or _is_ids(value):
        return [value]
    if not isinstance(value, list):
        raise ValueError("a string, a list of token ids, or a list of these is needed")
    if not value:
        raise ValueError("at least one prompt is needed")
    for at, prompt in enumerate(value):
        if not isinstance(prompt, str) and prompt != [] and not _is_ids(prompt):
            raise ValueError(f"item {at} is {shown(prompt)}: a string or a list of token ids is needed")
    return value


def _stop_strings(value: object) -> tuple[str, ...]:
    stops = () if value is None else (value,) if isinstance(value, str) else value
    if not isinstance(stops, list | tuple) or not all(isinstance(stop, str) for stop in stops):
        raise ValueError("a string or a list of strings is needed")
    if len(stops) > MAX_STOP_STRINGS:
        raise ValueError(f"there are {len(stops)} stop strings, the limit is {MAX_STOP_STRINGS}")
    for stop in stops:
        if not 1 <= len(stop) <= MAX_STOP_LENGTH:
            raise ValueError(
                f"a stop string has {len(stop)} characters, the limits are 1 and {MAX_STOP_LENGTH}"
            )
    return tuple(stops)


class StreamOptions(BaseModel):
    """include_usage: a last event with the usage of the request; continuous_usage_stats: usage in every
    event."""

    model_config = ConfigDict(strict=True)

    include_usage: bool = False
    continuous_usage_stats: bool = False


class GenerationRequest(BaseModel):
    """What completions and chat completions have in common. Null stands for the default everywhere."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    model: str | None = None
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, lt=1 << 31)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-_INT64, lt=_INT64)
    stop: Annotated[tuple[str, ...], BeforeValidator(_stop_strings)] = ()
    stop_token_ids: list[Annotated[int, Field(ge=0)]] | None = None
    ignore_eos: bool | None = None
    add_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None

    @model_validator(mode="after")
    def _check_stream_options(self) -> "GenerationRequest":
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options need stream: true")
        return self

    def sampling(self, max_tokens: int) -> SamplingParams:
        """The engine's parameters; without a seed a random one is drawn."""
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=max(self.top_k or 0, 0),
            top_p=1.0 if self.top_p is None else self.top_p,
            min_p=self.min_p or 0.0,
            seed=random.getrandbits(63) if self.seed is None else self.seed,
            ignore_eos=bool(self.ignore_eos),
            stop=self.stop,
            stop_token_ids=tuple(self.stop_token_ids or ()),
        )


class CompletionRequest(GenerationRequest):
    """POST /v1/completions. `prompt` accepts one prompt or a list; each is text or token ids."""

    prompt: Annotated[list[Any], BeforeValidator(_prompts)]


class TextPart(BaseModel):
    """One part of a message; other kinds than text are refused."""

    model_config = ConfigDict(strict=True)

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """role: the template decides which there are; those that need tools are refused."""

    model_config = ConfigDict(strict=True, extra="allow")

    role: str
    content: str | list[TextPart] | None = None

    @model_validator(mode="after")
    def _check_tools(self) -> "Message":
        if self.role in ("tool", "function") or (self.model_extra or {}).get("tool_calls"):
            raise ValueError("this server does not support tools")
        return self

    def plain(self) -> dict[str, str]:
        """What the template gets: the parts of a content joined by line breaks."""
        parts = [self.content or ""] if not isinstance(self.content, list) else [p.text for p in self.content]
        return {"role": self.role, "content": "\n".join(parts)}


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions. max_completion_tokens is the newer name of max_tokens and wins over it."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _take_newer_name(self) -> "ChatRequest":
        if self.max_completion_tokens is not None:
            self.max_tokens = self.max_completion_tokens
        return self


Body = TypeVar("Body", bound=GenerationRequest)


def parse(kind: type[Body], body: bytes) -> Body:
    """The request in a body; ApiError 400 otherwise."""
    try:
        request = kind.model_validate_json(body)
    except ValidationError as error:
        raise _as_api_error(error) from None
    for name, value in (request.model_extra or {}).items():
        if name in UNSUPPORTED and not _asks_for_nothing(value, UNSUPPORTED[name]):
            neutral = " or ".join(shown(accepted) for accepted in (None, *UNSUPPORTED[name]))
            raise ApiError(
                400,
                f"{name} is {shown(value)}: this server does not support it; only {neutral} is accepted",
                name,
                "unsupported_parameter",
            )
    return request


def _asks_for_nothing(value: object, neutral: tuple[object, ...]) -> bool:
    # 0 == False, but logprobs 0 asks for something and logprobs false does not.
    return value is None or any(
        value == accepted and isinstance(value, bool) == isinstance(accepted, bool) for accepted in neutral
    )


def _as_api_error(error: ValidationError) -> ApiError:
    # Of the branches of a union, the one that was entered furthest is the one that was meant.
    first = max(error.errors(include_url=False), key=lambda found: len(found["loc"]))
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is not valid JSON: {first['ctx']['error']}", code="invalid_json")
    names = [str(part) for part in first["loc"] if part != "str" and not str(part).startswith("list[")]
    param = ".".join(names) or None
    problem = str(first["ctx"]["error"]) if first["type"] == "value_error" else first["msg"]
    problem = problem[0].lower() + problem[1:]
    if param is None:
        return ApiError(400, f"invalid request: {problem}")
    if first["type"] == "missing":
        return ApiError(400, f"{param} is missing", param, "missing_required_parameter")
    return ApiError(400, f"{param} is {shown(first['input'])}: {problem}", param)
