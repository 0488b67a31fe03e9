"""What a caller asks for, and what the scheduler knows of it while it runs."""

from dataclasses import dataclass, field
from enum import IntEnum

from engine.config import ConfigError

MAX_LOGPROBS = 20
MAX_FLOAT = 1e6  # far beyond what changes a result, far below what overflows fp32


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens and when to stop.

    temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 are off. seed: any int64; two requests of equal
    prompt and seed give equal output whatever else runs. The repetition penalty counts prompt and output,
    presence and frequency penalties the output alone. logit_bias: (token id, addend) pairs. Before
    min_tokens tokens no stop id can be chosen. logprobs, prompt_logprobs: None, or how many best
    alternatives to report beside each chosen or given token. stop strings are the front end's business:
    the engine sees token ids only.
    """

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError, naming value and limits, for what no request may ask."""
        infinity = float("inf")
        for name, low, high in (
            ("max_tokens", 1, infinity),
            ("min_tokens", 0, self.max_tokens),
            ("temperature", 0, MAX_FLOAT),
            ("top_k", 0, infinity),
            ("top_p", 0, 1),
            ("min_p", 0, 1),
            ("seed", -(1 << 63), (1 << 63) - 1),
            ("repetition_penalty", 1e-6, MAX_FLOAT),
            ("presence_penalty", -MAX_FLOAT, MAX_FLOAT),
            ("frequency_penalty", -MAX_FLOAT, MAX_FLOAT),
            ("logprobs", 0, MAX_LOGPROBS),
            ("prompt_logprobs", 0, MAX_LOGPROBS),
        ):
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ConfigError(f"{name} is {value}; it lies in [{low:g}, {high:g}]")


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural-log probabilities at one position: of the token itself, and of the best ids in order."""

    token: float
    top_ids: tuple[int, ...]
    top: tuple[float, ...]


class Finish(IntEnum):
    """Why a request ended; NOT_YET is no end, BROKEN means that the model's logits were not finite."""

    NOT_YET = 0
    STOP = 1
    LENGTH = 2
    CANCELLED = 3
    BROKEN = 4


@dataclass(slots=True, eq=False)
class Request:
    """One sequence in the engine. Only the scheduler writes it.

    tokens holds the prompt and every generated token whose result was read. The two counters run ahead of
    it while steps are queued: `planned` is the length (tokens) and `computed` the number of positions with
    KV that the sequence will have, at most, once all queued steps have run.
    """

    id: int
    tokens: list[int]
    params: SamplingParams
    stop_ids: tuple[int, ...]
    max_length: int
    priority: int = 0
    cache_salt: str = ""
    order: tuple[int, int] = (0, 0)
    prompt_length: int = 0
    planned: int = 0
    computed: int = 0
    cached: int = 0
    reported: int = 0
    slot: int = -1
    blocks: list[int] = field(default_factory=list)
    granted: int = 0
    published: int = 0
    chain: int | str = 0
    in_flight: int = 0
    finish: Finish = Finish.NOT_YET

    def __post_init__(self) -> None:
        self.prompt_length = self.planned = len(self.tokens)

    @property
    def pending(self) -> int:
        """Tokens whose KV is not yet computed nor planned; 0 when nothing is left to plan."""
        if self.planned >= self.max_length:
            return 0
        return self.planned - self.computed


@dataclass(slots=True)  # one a sequence and step: frozen ones take three times as long to make
class Update:
    """News of one request: new token ids, and the reason if it has ended."""

    request_id: int
    token_ids: list[int]
    finish: Finish
    cached_tokens: int
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
