"""A prompt as a turn of chat, by the chat template of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from jinja2.sandbox import ImmutableSandboxedEnvironment


def chat_turn(model_dir: Path) -> Callable[[str], str]:
    """From a prompt to the text an instruction-tuned model answers: one user turn, then its own turn begun.

    A HuggingFace folder without a chat template takes prompts as they are.
    """
    config = model_dir / "tokenizer_config.json"
    settings = json.loads(config.read_bytes()) if config.is_file() else {}
    source = settings.get("chat_template")
    if not isinstance(source, str):
        return lambda prompt: prompt
    template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(source)
    special = {name: settings.get(name) or "" for name in ("bos_token", "eos_token")}

    def turn(prompt: str) -> str:
        messages = [{"role": "user", "content": prompt}]
        return template.render(messages=messages, add_generation_prompt=True, **special)

    return turn
