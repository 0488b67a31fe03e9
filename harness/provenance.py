"""The machine, the interpreters and their packages, and the weights, as the manifest records them."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import psutil

from harness.errors import BadInput
from harness.schema import Environment, GpuInfo, Hardware
from harness.systems.environment import Interpreter

RECORDED_PACKAGES = (
    "torch", "triton", "transformers", "tokenizers", "safetensors", "numpy", "vllm", "sglang", "sgl-kernel",
    "flashinfer-python", "tensorrt-llm", "fastapi", "uvicorn", "uvloop", "httptools", "pydantic",
)  # fmt: skip
_PACKAGE_QUERY = """
import importlib.metadata, json, platform, sys
versions = {}
for name in sys.argv[1:]:
    try:
        versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps([platform.python_version(), versions]))
"""


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Model name of the first CPU the kernel lists, or its architecture."""
    found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(errors="replace"), re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def usable_cores(cpu_max: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Cores this process may use: its affinity, or less where a container's quota is less."""
    cores = len(os.sched_getaffinity(0))
    if cpu_max.is_file():
        quota, period = cpu_max.read_text().split()
        if quota != "max":
            cores = min(cores, math.ceil(int(quota) / int(period)))
    return cores


def read_hardware(gpus: list[GpuInfo]) -> Hardware:
    return Hardware(
        cpu_model=cpu_model(),
        cpu_cores=usable_cores(),
        memory_bytes=psutil.virtual_memory().total,
        kernel=platform.release(),
        gpus=gpus,
    )


def box_name(hardware: Hardware) -> str:
    """A name for the kind of machine, such as nvidia-h200-16c or cpu-2c. Host names say nothing to others."""
    cores = f"{hardware.cpu_cores}c"
    if not hardware.gpus:
        return f"cpu-{cores}"
    gpu = re.sub(r"[^a-z0-9]+", "-", hardware.gpus[0].name.lower()).strip("-")
    count = len(hardware.gpus)
    return f"{gpu}-{cores}" if count == 1 else f"{count}x-{gpu}-{cores}"


def read_environment(interpreter: Interpreter, root: Path) -> Environment:
    """Python and package versions as that interpreter sees them. Raises BadInput when it cannot run."""
    command = [str(interpreter.python), "-c", _PACKAGE_QUERY, *RECORDED_PACKAGES]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, check=True, env=interpreter.process_environment()
        ).stdout
    except OSError as error:
        raise BadInput(f"interpreter {interpreter.python} of {interpreter.name}: {error.strerror}") from error
    except subprocess.CalledProcessError as error:
        raise BadInput(
            f"interpreter {interpreter.python} of {interpreter.name} failed: {error.stderr}"
        ) from error
    python_version, packages = json.loads(answer)
    return Environment(
        python=anonymous(str(interpreter.python), root),
        import_paths=[anonymous(str(path), root) for path in interpreter.import_paths],
        given=interpreter.given,
        python_version=python_version,
        packages=packages,
    )


def anonymous(text: str, root: Path, model: Path | None = None) -> str:
    """`text` without this machine's own folders: {model}, {checkout} and ~ stand for them."""
    if model is not None:
        text = text.replace(str(model), "{model}")
    return text.replace(str(root), "{checkout}").replace(str(Path.home()), "~")
