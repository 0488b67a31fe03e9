"""The fields of the API's requests, checked strictly; every refusal names the field, its value and the limit.

Fields that are not known are ignored, as OpenAI-compatible servers do, unless they ask for something this
server cannot do: those of UNSUPPORTED are refused when their value is not one that asks for nothing.
"""

import random
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from engine.serving.http.errors import ApiError, shown
from engine.serving.request import SamplingParams

MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1024
MAX_N = 64
MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 300
MAX_BIAS = 100
MAX_SALT_LENGTH = 256
_INT32 = 1 << 31
_INT64 = 1 << 63

UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": (),
    "audio": (),
    "bad_words": ([],),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "detokenize": (True,),
    "documents": ([],),
    "ebnf": (),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "image_data": (),
    "images": ([],),
    "include_stop_str_in_output": (False,),
    "json_schema": (),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "max_completion_tokens": (),
    "modalities": (["text"],),
    "prediction": (),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "regex": (),
    "response_format": ({"type": "text"},),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "stop_regex": (),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "web_search_options": (),
}
"""Capabilities this server lacks, with the values (null beside them) that ask for nothing. `echo` is known to
completions, `top_logprobs` and `max_completion_tokens` to chat; each is refused by the other."""

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


def _logit_bias(value: object) -> tuple[tuple[int, float], ...]:
    """OpenAI's map from token ids, written as strings, to addends; as (id, addend) pairs."""
    if not isinstance(value, dict):
        raise ValueError("an object of token ids and their addends is needed")
    if len(value) > MAX_LOGIT_BIAS:
        raise ValueError(f"there are {len(value)} entries, the limit is {MAX_LOGIT_BIAS}")
    for key, addend in value.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10 and str(int(key)) == key):
            raise ValueError(f"the key {shown(key)} is no token id")
        if type(addend) not in (int, float) or not -MAX_BIAS <= addend <= MAX_BIAS:
            raise ValueError(f"{key} has {shown(addend)}: a number from -{MAX_BIAS} to {MAX_BIAS} is needed")
    return tuple((int(key), float(addend)) for key, addend in value.items())


def _count_of_logprobs(value: object) -> object:
    return None if value is False else value


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
    min_tokens: int | None = Field(None, ge=0)
    repetition_penalty: float | None = Field(None, gt=0)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: Annotated[tuple[tuple[int, float], ...], BeforeValidator(_logit_bias)] | None = None
    n: int | None = Field(None, ge=1, le=MAX_N)
    best_of: int | None = None
    priority: int | None = Field(None, ge=-_INT32, lt=_INT32)
    cache_salt: str | None = Field(None, min_length=1, max_length=MAX_SALT_LENGTH)
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

    @model_validator(mode="after")
    def _check_best_of(self) -> "GenerationRequest":
        if self.best_of is not None and self.best_of != self.choices:
            raise ApiError(
                400,
                f"best_of is {shown(self.best_of)}: this server returns what it generates; only the value of "
                f"n, {self.choices}, is accepted",
                "best_of",
                "unsupported_parameter",
            )
        return self

    @property
    def choices(self) -> int:
        """How many answers each prompt gets."""
        return self.n or 1

    @property
    def logprob_count(self) -> int | None:
        """How many alternatives to report beside each token; None for no report at all."""
        return None

    @property
    def prompt_logprob_count(self) -> int | None:
        """The same for the tokens of the prompt."""
        return None

    def sampling(self, max_tokens: int, choice: int = 0) -> SamplingParams:
        """The engine's parameters of one choice; without a seed a random one is drawn."""
        if (self.min_tokens or 0) > max_tokens:
            raise ApiError(
                400,
                f"min_tokens is {shown(self.min_tokens)}: it exceeds max_tokens, which is {max_tokens}",
                "min_tokens",
            )
        return SamplingParams(
            max_tokens=max_tokens,
            min_tokens=self.min_tokens or 0,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=max(self.top_k or 0, 0),
            top_p=1.0 if self.top_p is None else self.top_p,
            min_p=self.min_p or 0.0,
            seed=random.getrandbits(63) if self.seed is None else choice_seed(self.seed, choice),
            repetition_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            logit_bias=self.logit_bias or (),
            ignore_eos=bool(self.ignore_eos),
            stop=self.stop,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            logprobs=self.logprob_count,
            prompt_logprobs=self.prompt_logprob_count,
        )


def choice_seed(seed: int, choice: int) -> int:
    """The seed of the choice-th answer to one prompt: the first has the request's own, the others one that
    is mixed from both, so that asking with it alone repeats the answer.

    The mix is SplitMix64's (Steele, Lea and Flood 2014): its choice-th output after the state `seed`, as
    int64.
    """
    if choice == 0:
        return seed
    z = (seed + choice * 0x9E3779B97F4A7C15) % (1 << 64)
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % (1 << 64)
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % (1 << 64)
    z ^= z >> 31
    return z - (1 << 64) if z >= _INT64 else z


class CompletionRequest(GenerationRequest):
    """POST /v1/completions. `prompt` accepts one prompt or a list; each is text or token ids.

    max_tokens 0 with echo returns the prompt alone, which with logprobs scores it; the engine generates one
    token all the same, which is neither shown nor counted, and needs room for it.
    """

    prompt: Annotated[list[Any], BeforeValidator(_prompts)]
    max_tokens: int | None = Field(None, ge=0)
    echo: bool | None = None
    logprobs: Annotated[
        Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None, BeforeValidator(_count_of_logprobs)
    ] = None

    @model_validator(mode="after")
    def _check_max_tokens(self) -> "CompletionRequest":
        if self.max_tokens == 0 and not self.echo:
            raise ApiError(400, "max_tokens is 0: at least 1 is needed unless echo is true", "max_tokens")
        return self

    @property
    def logprob_count(self) -> int | None:
        return self.logprobs

    @property
    def prompt_logprob_count(self) -> int | None:
        return self.logprobs if self.echo else None


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
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)

    @property
    def logprob_count(self) -> int | None:
        return self.top_logprobs or 0 if self.logprobs else None

    @model_validator(mode="after")
    def _check_logprobs(self) -> "ChatRequest":
        if self.top_logprobs and not self.logprobs:
            raise ApiError(
                400, f"top_logprobs is {self.top_logprobs}: it needs logprobs: true", "top_logprobs"
            )
        return self

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
