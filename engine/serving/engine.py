"""The engine step: schedule, run, postprocess."""

import numpy as np

from engine.config import ConfigError, EngineConfig
from engine.model.llama import Llama
from engine.serving.news import News
from engine.serving.request import Request, SamplingParams
from engine.serving.runner import Runner
from engine.serving.scheduler import Scheduler
from engine.serving.slot_row import MAX_LOGIT_BIAS, MAX_STOP_IDS


class Engine:
    """One model on one device, serving many sequences at once. Not thread-safe: one owner steps it."""

    def __init__(self, config: EngineConfig, model: Llama) -> None:
        self.config = config
        self.eos_ids = model.config.eos_token_ids
        self.vocab_size = model.config.vocab_size
        self.scheduler = Scheduler(config)
        self.runner = Runner(config, model)
        self._queued = 0

    def add(
        self,
        request_id: int,
        prompt: list[int],
        params: SamplingParams,
        priority: int = 0,
        cache_salt: str = "",
    ) -> None:
        """Queue one request, which shares KV only with those of equal cache_salt.

        Raises ConfigError, naming value and limit, when it can never run.
        """
        self.check_request(prompt, params)
        max_length = len(prompt) + params.max_tokens
        stop_ids = self._stop_ids(params)
        tokens = np.array(prompt, np.int32)
        self.scheduler.add(Request(request_id, tokens, params, stop_ids, max_length, priority, cache_salt))

    def check_request(self, prompt: list[int], params: SamplingParams) -> None:
        """Raise ConfigError, naming value and limit, for a request that can never run."""
        max_length = len(prompt) + params.max_tokens
        pool = self.scheduler.pool
        if not prompt:
            raise ConfigError("the prompt is empty; at least 1 token is needed")
        named = (*prompt, *(token for token, _ in params.logit_bias))
        if min(named) < 0 or max(named) >= self.vocab_size:
            bad = next(token for token in named if not 0 <= token < self.vocab_size)
            raise ConfigError(f"token id {bad} is outside the vocabulary of {self.vocab_size}")
        if max_length > self.config.max_model_len:
            raise ConfigError(
                f"{len(prompt)} prompt tokens + max_tokens {params.max_tokens} = {max_length} exceed "
                f"the context of {self.config.max_model_len}"
            )
        if pool.blocks_for(max_length) > pool.capacity:
            raise ConfigError(
                f"{max_length} tokens need {pool.blocks_for(max_length)} KV blocks; there are {pool.capacity}"
            )
        if (stop_ids := len(self._stop_ids(params))) > MAX_STOP_IDS:
            raise ConfigError(f"{stop_ids} stop token ids; at most {MAX_STOP_IDS} are possible")
        if (biased := len(params.logit_bias)) > MAX_LOGIT_BIAS:
            raise ConfigError(f"logit_bias has {biased} entries; at most {MAX_LOGIT_BIAS} are possible")

    def _stop_ids(self, params: SamplingParams) -> tuple[int, ...]:
        return params.stop_token_ids if params.ignore_eos else (*self.eos_ids, *params.stop_token_ids)

    def cancel(self, request_id: int) -> None:
        self.scheduler.cancel(request_id)

    def reset_prefix_cache(self) -> None:
        """Let later requests reuse nothing that was computed before; running ones go on."""
        self.scheduler.pool.reset_prefix_cache()

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def step(self) -> News:
        """Queue steps up to the configured depth, then apply the results of the oldest one."""
        while self._queued < self.config.queue_depth and (plan := self.scheduler.schedule()):
            self.runner.launch(plan)
            self._queued += 1
        if self._queued == 0:
            return self.scheduler.take_ended()
        self._queued -= 1
        return self.scheduler.process(self.runner.collect())

    def check(self) -> None:
        """Assert the integrity of every structure; for tests after each step, in production when idle."""
        self.scheduler.check()

    def stats(self) -> dict[str, int]:
        """Counters and gauges of this moment."""
        pool = self.scheduler.pool
        return {
            "running": len(self.scheduler.running),
            "waiting": self.scheduler.waiting,
            "kv_blocks_used": pool.capacity - pool.free,
            "kv_blocks": pool.capacity,
            "preemptions": self.scheduler.preemptions,
        }
