"""On which machine and by which code a micro-benchmark was run, for its CSV."""

import os
import platform
from pathlib import Path

from harness.provenance import cpu_model
from harness.source import read_source

CHECKOUT = Path(__file__).resolve().parents[2]


def machine() -> str:
    """Processor, cores, kernel and interpreter."""
    system = f"Linux {platform.release()}, Python {platform.python_version()}"
    return f"{cpu_model()}, {os.cpu_count()} logical CPUs, {system}"


def commit() -> str:
    """That of this checkout, marked when there are changes on top."""
    source = read_source(CHECKOUT).source
    return source.git_commit[:12] + ("+changes" if source.dirty else "")
