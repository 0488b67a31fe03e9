"""The engine as the front end sees it; engine.serving.client.EngineClient is the real one."""

from typing import Protocol

from engine.serving.request import SamplingParams, TokenLogprobs


class Update(Protocol):
    """News of one engine request; exactly one, the last, has a finish: stop, length, cancelled, refused (it
    can never run) or error."""

    token_ids: list[int]
    finish: str | None
    error: str | None
    cached_tokens: int
    logprobs: tuple[TokenLogprobs, ...]
    prompt_logprobs: tuple[TokenLogprobs, ...]


class OnUpdate(Protocol):
    def __call__(self, update: Update) -> None: ...


class EngineInfo(Protocol):
    max_model_len: int
    vocab_size: int


class Client(Protocol):
    """state: ready until the engine fails or is stopped, `error` then says why; in_flight: requests whose
    last update has not come; stats: the engine's gauges of its last step with news."""

    info: EngineInfo
    state: str
    error: str | None
    stats: dict[str, int]

    @property
    def in_flight(self) -> int: ...

    def submit(
        self,
        prompt_ids: list[int],
        params: SamplingParams,
        on_update: OnUpdate,
        priority: int = 0,
        cache_salt: str = "",
    ) -> int: ...

    def cancel(self, request_id: int) -> None: ...

    def reset_prefix_cache(self) -> None: ...
