"""The systems that can be measured, one small file each, all declared as a base.System."""

from harness.errors import BadInput
from harness.systems.base import System
from harness.systems.engine import ENGINE
from harness.systems.null import NULL
from harness.systems.sglang import SGLANG
from harness.systems.vllm import VLLM

SYSTEMS: dict[str, System] = {system.name: system for system in (ENGINE, VLLM, SGLANG, NULL)}


def choose(text: str) -> tuple[System, str]:
    """The system and the configuration's name of NAME or NAME:CONFIGURATION. Raises BadInput."""
    name, _, configuration = text.partition(":")
    configuration = configuration or "default"
    if name not in SYSTEMS:
        raise BadInput(f"unknown system {name!r}; there are: {', '.join(sorted(SYSTEMS))}")
    known = SYSTEMS[name].configurations
    if configuration not in known:
        raise BadInput(
            f"system {name} has no configuration {configuration!r}; there are: {', '.join(sorted(known))}"
        )
    return SYSTEMS[name], configuration
