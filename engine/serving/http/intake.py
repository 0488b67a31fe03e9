"""From a validated request to a reply under way: model name, token ids, context limit, one choice for each
prompt and repetition."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from tokenizers import Tokenizer

from engine.serving.detokenizer import detokenizer_factory
from engine.serving.http.choice import Choice, Wishes
from engine.serving.http.engine_client import Client
from engine.serving.http.errors import ApiError, shown
from engine.serving.http.frames import Dialect, Frames
from engine.serving.http.logprobs import TokenNames
from engine.serving.http.metrics import Metrics
from engine.serving.http.protocol import Exchange
from engine.serving.http.reply import PlainReply, Shared, StreamReply
from engine.serving.http.schema import GenerationRequest, Prompt

INLINE_CHARACTERS = 1000
"""Longer texts are tokenised in a thread: at about 1 µs a character they would hold up every stream."""
TOKENIZE_THREADS = 2
MAX_CHOICES = 1024
"""Prompts times n, of one request."""
RETRY_SECONDS = "1"


class Intake:
    """What both generating endpoints share. Raises ConfigError for a tokenizer that cannot be detokenised.

    max_queue: sequences that may wait for the engine, those included that it does not know of yet. Beyond
    them requests are turned away with a 429.
    """

    def __init__(
        self, client: Client, tokenizer: Tokenizer, model_name: str, max_queue: int, metrics: Metrics
    ) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._client = client
        self._max_queue = max_queue
        self._metrics = metrics
        self._tokenizer = tokenizer
        self._new_detokenizer = detokenizer_factory(tokenizer)
        self._names = TokenNames(tokenizer)
        self._threads = ThreadPoolExecutor(TOKENIZE_THREADS, thread_name_prefix="tokenize")
        self.model_name = model_name
        self.shared = Shared(client, metrics)

    @property
    def context(self) -> int:
        """Tokens that prompt and answer may have together."""
        return self._client.info.max_model_len

    def check_queue(self) -> None:
        """ApiError 429 when too many wait already. A sequence runs once the engine has said so."""
        waiting = self._client.in_flight - self._client.stats.get("running", 0)
        if waiting >= self._max_queue:
            self._metrics.refused()
            raise ApiError(
                429,
                f"{waiting} sequences are waiting, the limit is {self._max_queue}; try again later",
                code="queue_full",
                headers=(("retry-after", RETRY_SECONDS),),
            )

    def check_model(self, name: str | None) -> None:
        if name is not None and name != self.model_name:
            raise ApiError(
                404,
                f"the model {name!r} does not exist; this server has {self.model_name!r}",
                "model",
                "model_not_found",
            )

    async def token_ids(self, prompt: Prompt, add_special_tokens: bool, param: str) -> list[int]:
        """The ids of a prompt, which may be ids already; ApiError when there are none or one is out of
        range."""
        if isinstance(prompt, str):
            ids = await self._tokenize(prompt, add_special_tokens) if prompt else []
        else:
            ids = prompt
            self._check_range(ids, param)
        if not ids:
            raise ApiError(400, f"{param} is empty: at least 1 token is needed", param)
        return ids

    def start(
        self, exchange: Exchange, request: GenerationRequest, dialect: Dialect, prompts: list[list[int]],
        default_max_tokens: int, param: str, echo: bool = False,
    ) -> None:  # fmt: skip
        """Submit n choices for each prompt and let the reply answer the exchange."""
        if not exchange.open:
            return
        self.check_queue()
        if (count := len(prompts) * request.choices) > MAX_CHOICES:
            raise ApiError(
                400,
                f"n is {request.choices}: with {len(prompts)} prompts that makes {count} choices, "
                f"the limit is {MAX_CHOICES}",
                "n",
            )
        self._check_range(request.stop_token_ids or [], "stop_token_ids")
        self._check_range([token_id for token_id, _ in request.logit_bias or ()], "logit_bias")
        options = request.stream_options
        frames = Frames(
            dialect,
            self.model_name,
            self._names,
            include_usage=options is not None and options.include_usage,
            continuous_usage=options is not None and options.continuous_usage_stats,
        )
        wishes = Wishes(bool(request.return_token_ids), echo, output=request.max_tokens != 0)
        choices: list[Choice] = []
        for ids in prompts:
            asked = request.max_tokens if wishes.output else 1
            max_tokens = self._max_tokens(asked, default_max_tokens, len(ids), param)
            for repeat in range(request.choices):
                params = request.sampling(max_tokens, repeat)
                choices.append(Choice(len(choices), repeat, ids, params, self._new_detokenizer(), wishes))
        reply = StreamReply if request.stream else PlainReply
        salt = request.cache_salt or ""
        reply(self.shared, exchange, frames, choices, request.priority or 0, salt).start()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _tokenize(self, text: str, add_special_tokens: bool) -> list[int]:
        if len(text) <= INLINE_CHARACTERS:
            return self._encode(text, add_special_tokens)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._encode, text, add_special_tokens)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        # The batch call skips the offsets, which take half the time of the plain one.
        return self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def _check_range(self, ids: list[int], param: str) -> None:
        size = self._client.info.vocab_size
        if ids and not (min(ids) >= 0 and max(ids) < size):
            wrong = next(token_id for token_id in ids if not 0 <= token_id < size)
            raise ApiError(
                400, f"token id {shown(wrong)} in {param} is outside the vocabulary: 0 to {size - 1}", param
            )

    def _max_tokens(self, asked: int | None, default: int, prompt_tokens: int, param: str) -> int:
        context = self.context
        if prompt_tokens >= context:
            raise ApiError(
                400,
                f"{param} has {prompt_tokens} tokens; with at least 1 to generate it exceeds the context of "
                f"{context} tokens",
                param,
                "context_length_exceeded",
            )
        if asked is not None and prompt_tokens + asked > context:
            raise ApiError(
                400,
                f"max_tokens is {shown(asked)}: with {prompt_tokens} prompt tokens it exceeds the context of "
                f"{context} tokens by {shown(prompt_tokens + asked - context)}",
                "max_tokens",
                "context_length_exceeded",
            )
        return asked or min(default, context - prompt_tokens)
