"""POST /v1/chat/completions."""

from engine.serving.http.chat_template import ChatTemplate, TemplateRefusal
from engine.serving.http.errors import ApiError
from engine.serving.http.frames import CHAT
from engine.serving.http.intake import Intake
from engine.serving.http.protocol import Exchange
from engine.serving.http.schema import ChatRequest, parse


async def chat(intake: Intake, template: ChatTemplate | None, exchange: Exchange) -> None:
    request = parse(ChatRequest, exchange.request.take_body())
    intake.check_model(request.model)
    intake.check_queue()
    if template is None:
        raise ApiError(
            400, f"the model {intake.model_name!r} has no chat template; /v1/completions needs none"
        )
    try:
        text = template.render([message.plain() for message in request.messages])
    except TemplateRefusal as refusal:
        raise ApiError(400, f"the chat template refuses these messages: {refusal}", "messages") from None
    # The template writes the special tokens itself.
    ids = await intake.token_ids(text, request.add_special_tokens is True, "messages")
    intake.start(exchange, request, CHAT, [ids], intake.context, "messages")
