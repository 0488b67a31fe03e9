"""The systems that can be measured, one small file each, all declared as a base.System."""

from harness.errors import BadInput
from harness.systems.base import System
from harness.systems.engine import ENGINE
from harness.systems.null import NULL
from harness.systems.openai import SCHEMES, openai_system
from harness.systems.sglang import SGLANG
from harness.systems.tensorrt_llm import TENSORRT_LLM
from harness.systems.transformers import TRANSFORMERS
from harness.systems.vllm import VLLM

SYSTEMS: dict[str, System] = {
    system.name: system for system in (ENGINE, VLLM, SGLANG, TRANSFORMERS, TENSORRT_LLM, NULL)
}


def choose(text: str) -> tuple[System, str]:
    """The system and the configuration's name of NAME, NAME:CONFIGURATION, or http://HOST[:PORT][/PREFIX].

    Raises BadInput.
    """
    if text.startswith(SCHEMES):
        return openai_system(text)
    name, _, configuration = text.partition(":")
    configuration = configuration or "default"
    if name not in SYSTEMS:
        raise BadInput(
            f"unknown system {name!r}; there are: {', '.join(sorted(SYSTEMS))}, or http://HOST:PORT of a "
            "server that runs"
        )
    known = SYSTEMS[name].configurations
    if configuration not in known:
        raise BadInput(
            f"system {name} has no configuration {configuration!r}; there are: {', '.join(sorted(known))}"
        )
    return SYSTEMS[name], configuration
