"""The chat template of a checkpoint: messages to the text of a prompt, in a sandbox.

Templates are programs in Jinja's language that come with the checkpoint. They are run with what transformers
gives them (its `apply_chat_template`): trimmed blocks, loop controls, `tojson`, `raise_exception`,
`strftime_now`, and the `generation` tag, which only marks text.
"""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.config import ConfigError

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


class TemplateRefusal(ValueError):
    """The template does not take these messages; the message says why."""


class ChatTemplate:
    """source: the template; special_tokens: what it may name, such as `bos_token`. ConfigError if it is no
    template."""

    def __init__(self, source: str, special_tokens: dict[str, str] | None = None) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
        )
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": _raise, "strftime_now": _now}
        self._special_tokens = special_tokens or {}
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ConfigError(f"the chat template is not valid: {error}") from None

    @classmethod
    def load(cls, folder: Path) -> "ChatTemplate | None":
        """The template of a HuggingFace folder: chat_template.jinja, or chat_template in
        tokenizer_config.json. ConfigError when the latter is not JSON."""
        config_path, template_path = folder / "tokenizer_config.json", folder / "chat_template.jinja"
        try:
            config = json.loads(config_path.read_text()) if config_path.exists() else {}
        except ValueError as error:
            raise ConfigError(f"{config_path}: not valid JSON: {error}") from error
        source = template_path.read_text() if template_path.exists() else config.get("chat_template")
        if isinstance(source, list):
            source = {entry["name"]: entry["template"] for entry in source}.get("default")
        if source is None:
            return None
        tokens = {name: config[name] for name in SPECIAL_TOKENS if config.get(name) is not None}
        return cls(source, {name: t if isinstance(t, str) else t["content"] for name, t in tokens.items()})

    def render(self, messages: list[dict[str, Any]]) -> str:
        """The prompt that ends where the assistant is to speak."""
        try:
            return self._template.render(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._special_tokens,
            )
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise TemplateRefusal(str(error)) from None


class _GenerationTag(Extension):
    tags = {"generation"}  # noqa: RUF012 (Jinja's interface)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    # Jinja's own escapes HTML.
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
