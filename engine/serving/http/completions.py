"""POST /v1/completions."""

from engine.serving.http.errors import ApiError
from engine.serving.http.frames import COMPLETION
from engine.serving.http.intake import Intake
from engine.serving.http.protocol import Exchange
from engine.serving.http.schema import CompletionRequest, parse

DEFAULT_MAX_TOKENS = 16
"""OpenAI's; cut to the room that the context leaves."""
MAX_PROMPTS = 256


async def complete(intake: Intake, exchange: Exchange) -> None:
    request = parse(CompletionRequest, exchange.request.take_body())
    intake.check_model(request.model)
    intake.check_queue()
    if len(request.prompt) > MAX_PROMPTS:
        raise ApiError(
            400, f"prompt holds {len(request.prompt)} prompts, the limit is {MAX_PROMPTS}", "prompt"
        )
    special = request.add_special_tokens is not False
    prompts = [await intake.token_ids(prompt, special, "prompt") for prompt in request.prompt]
    intake.start(exchange, request, COMPLETION, prompts, DEFAULT_MAX_TOKENS, "prompt", bool(request.echo))
