"""What a stage file says about a workload: load shapes, prompts, and laws of lengths."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from harness.workload.checks import (
    MAX_CONCURRENCY,
    MAX_DURATION_S,
    MAX_RATE_RPS,
    MAX_REQUESTS,
    MAX_TOKEN_ID,
    MAX_TOKENS,
)

TraceName = Literal[
    "azure_code", "azure_conv", "mooncake_conversation", "mooncake_synthetic", "agentic_coding"
]
Rate = Annotated[float, Field(gt=0, le=MAX_RATE_RPS)]
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Seconds = Annotated[float, Field(ge=0, le=MAX_DURATION_S)]
Speed = Annotated[float, Field(gt=0, le=1_000)]


class Declared(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class FixedLength(Declared):
    law: Literal["fixed"] = "fixed"
    tokens: Tokens


class LengthRange(Declared):
    low: Tokens
    high: Tokens

    @model_validator(mode="after")
    def _is_a_range(self) -> LengthRange:
        if self.low > self.high:
            raise ValueError(f"low {self.low} must be at most high {self.high}")
        return self


class UniformLength(LengthRange):
    """Every whole number from low to high equally often; [low, high] is its short form."""

    law: Literal["uniform"] = "uniform"


class LognormalLength(LengthRange):
    """median * exp(sigma * z) for standard normal z, clamped into low..high."""

    law: Literal["lognormal"] = "lognormal"
    median: Tokens
    sigma: float = Field(gt=0, le=10)


class TraceLength(Declared):
    """What the row of the trace says that the load or the prompts name."""

    law: Literal["trace"] = "trace"


def _from_pair(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        return value
    if len(value) != 2:
        raise ValueError(f"{list(value)} must be [low, high]")
    return {"law": "uniform", "low": value[0], "high": value[1]}


DrawnLengths = Annotated[
    Annotated[FixedLength | UniformLength | LognormalLength, Field(discriminator="law")],
    BeforeValidator(_from_pair),
]
"""A law that needs no trace."""

Lengths = Annotated[
    Annotated[FixedLength | UniformLength | LognormalLength | TraceLength, Field(discriminator="law")],
    BeforeValidator(_from_pair),
]


class ClosedLoad(Declared):
    """`concurrency` requests in flight; the slots start evenly spread over `start_over_s`."""

    shape: Literal["closed"] = "closed"
    concurrency: int = Field(ge=1, le=MAX_CONCURRENCY)
    requests: int = Field(ge=1, le=MAX_REQUESTS)
    start_over_s: Seconds = 0

    @model_validator(mode="after")
    def _fills_its_slots(self) -> ClosedLoad:
        if self.requests < self.concurrency:
            raise ValueError(f"requests {self.requests} must be at least concurrency {self.concurrency}")
        return self


class PoissonLoad(Declared):
    shape: Literal["poisson"] = "poisson"
    rate_rps: Rate


class GammaLoad(Declared):
    """Independent gamma gaps with coefficient of variation `cv`: 1 is Poisson, more is burstier."""

    shape: Literal["gamma"] = "gamma"
    rate_rps: Rate
    cv: float = Field(ge=0.01, le=100)


class ConstantLoad(Declared):
    shape: Literal["constant"] = "constant"
    rate_rps: Rate


class BurstsLoad(Declared):
    """`size` requests at the same instant, bursts evenly spaced, `rate_rps` requests/s on average."""

    shape: Literal["bursts"] = "bursts"
    rate_rps: Rate
    size: int = Field(ge=1, le=MAX_REQUESTS)


class StepsLoad(Declared):
    """Poisson arrivals at each rate in turn, `step_s` seconds each; the play must be long enough for all."""

    shape: Literal["steps"] = "steps"
    rates_rps: tuple[Rate, ...] = Field(min_length=1)
    step_s: float = Field(gt=0, le=MAX_DURATION_S)


class TraceLoad(Declared):
    """Arrivals of a trace from its `start_s` on, `speed` times as fast as recorded."""

    shape: Literal["trace"] = "trace"
    trace: TraceName
    speed: Speed = 1.0
    start_s: Seconds = 0

    @model_validator(mode="after")
    def _has_arrivals(self) -> TraceLoad:
        if self.trace == "agentic_coding":
            raise ValueError("trace agentic_coding has no arrival times; name it in the prompts")
        return self


OpenLoad = PoissonLoad | GammaLoad | ConstantLoad | BurstsLoad | StepsLoad | TraceLoad
Load = Annotated[ClosedLoad | OpenLoad, Field(discriminator="shape")]


MIN_IDS = 256
"""With fewer, the serial of a prompt would be longer than half a cache block of 16 tokens."""


class IdRange(Declared):
    """Prompts are drawn from the token ids low <= id < high.

    The default leaves out the special tokens at the start of a vocabulary and fits into those of 32,000.
    """

    ids: tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(le=MAX_TOKEN_ID + 1)]] = (1_000, 32_000)

    @model_validator(mode="after")
    def _is_wide_enough(self) -> IdRange:
        low, high = self.ids
        if high - low < MIN_IDS:
            raise ValueError(f"ids [{low}, {high}) must hold at least {MIN_IDS} ids")
        return self


class EnglishPrompts(Declared):
    """The texts of prompts.jsonl, each behind a serial line of its own."""

    kind: Literal["english"] = "english"


class TokenIdPrompts(IdRange):
    """Prompts of exact length that share no cache block."""

    kind: Literal["token_ids"] = "token_ids"
    length: Lengths


class PrefixGroupPrompts(IdRange):
    """Each prompt starts with the `prefix_tokens` of one of `groups` groups, drawn evenly; `length` is the
    part after it, which is the prompt's own."""

    kind: Literal["prefix_groups"] = "prefix_groups"
    groups: int = Field(ge=1, le=MAX_REQUESTS)
    prefix_tokens: Tokens
    length: Lengths


class ConversationPrompts(Declared):
    """Conversations made of the English texts; a turn is sent `delay_s` after the one before ended."""

    kind: Literal["conversations"] = "conversations"
    turns: DrawnLengths
    delay_s: Seconds = 0


class TracePrompts(IdRange):
    """Prompts of the rows of a trace, in their order.

    A row whose prompt and output are more than `max_total_tokens` together is left out. `speed` divides the
    waits between the turns of recorded conversations, whose lengths in tokens are estimated as characters /
    4.
    """

    kind: Literal["trace"] = "trace"
    trace: TraceName
    max_total_tokens: Tokens | None = None
    speed: Speed = 1.0

    @model_validator(mode="after")
    def _has_waits(self) -> TracePrompts:
        if self.speed != 1 and self.trace != "agentic_coding":
            raise ValueError(f"speed {self.speed:g} belongs to the load: trace {self.trace} has no waits")
        return self


Prompts = Annotated[
    EnglishPrompts | TokenIdPrompts | PrefixGroupPrompts | ConversationPrompts | TracePrompts,
    Field(discriminator="kind"),
]
