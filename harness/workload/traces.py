"""The public request traces: where each comes from, and how it gets here.

    python -m harness.workload.traces fetch [NAME ...] [--from FOLDER] [--to FOLDER]

The repository does not carry them. Each is one file of a commit of its source, known by its SHA-256.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import get_args

from harness.workload.atomic import put
from harness.workload.checks import ScheduleError
from harness.workload.declared import TraceName
from harness.workload.recorded import (
    RecordedConversation,
    Row,
    agentic_conversations,
    azure_rows,
    mooncake_rows,
    spread_mooncake_rows,
)

SOURCE = "https://raw.githubusercontent.com"
TIMEOUT_S = 60

AZURE = ("Azure/AzurePublicDataset", "b469a113cedca53ddc3bdea71a143dc4b7d8700c")
AZURE_TERMS = (
    "CC BY 4.0; Pratyush Patel et al., Splitwise: Efficient generative LLM inference using phase splitting, "
    "ISCA 2024"
)
MOONCAKE = ("kvcache-ai/Mooncake", "3b5a594133958449a1feaf1c9e0fc1b553e34a28")
MOONCAKE_TERMS = (
    "Apache 2.0; Ruoyu Qin et al., Mooncake: Trading More Storage for Less Computation - A KVCache-centric "
    "Architecture for Serving LLM Chatbot, FAST 2025"
)
AGENTIC = ("mlcommons/endpoints", "ea3327530376fef63d706f4105612e17c2c80a8d")
AGENTIC_TERMS = (
    "Apache 2.0, task text from SWE-bench (MIT); Carlos E. Jimenez et al., SWE-bench: Can Language Models "
    "Resolve Real-world Github Issues?, ICLR 2024"
)


@dataclass(frozen=True)
class Trace:
    """A trace: the name of its file here, its place in a source repository, its hash, its licence and
    citation, and what reads it."""

    file: str
    repository: str
    commit: str
    path: str
    sha256: str
    terms: str
    parse: Callable[[Path], tuple[Row, ...] | tuple[RecordedConversation, ...]]


TRACES: dict[TraceName, Trace] = {
    "azure_code": Trace(
        "azure_llm_2023_code.csv",
        *AZURE,
        "data/AzureLLMInferenceTrace_code.csv",
        "54e9a6d2a4bd06ba1e060304b900abbc74cbea53de96506e60fe5bb4f2277fb6",
        AZURE_TERMS,
        azure_rows,
    ),
    "azure_conv": Trace(
        "azure_llm_2023_conv.csv",
        *AZURE,
        "data/AzureLLMInferenceTrace_conv.csv",
        "2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8",
        AZURE_TERMS,
        azure_rows,
    ),
    "mooncake_conversation": Trace(
        "mooncake_fast25_conversation.jsonl",
        *MOONCAKE,
        "FAST25-release/traces/conversation_trace.jsonl",
        "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df",
        MOONCAKE_TERMS,
        spread_mooncake_rows,
    ),
    "mooncake_synthetic": Trace(
        "mooncake_fast25_synthetic.jsonl",
        *MOONCAKE,
        "FAST25-release/traces/synthetic_trace.jsonl",
        "bd070915a98fc0ed264d7cfef2ce746002eb3076a695ec31ba2674c0111ec131",
        MOONCAKE_TERMS,
        mooncake_rows,
    ),
    "agentic_coding": Trace(
        "agentic_coding_2.5h.jsonl",
        *AGENTIC,
        "examples/11_Edge_Agentic_Example/agentic_coding_2.5h.jsonl",
        "b7da8c4ffbe1cabd79c4d8169e5201541e006364b4bfc016d01d893e20ee6f70",
        AGENTIC_TERMS,
        agentic_conversations,
    ),
}


def trace_folder() -> Path:
    """Where traces lie: $LLM_LADDER_CACHE/traces, else ~/.cache/llm-ladder/traces."""
    cache = os.environ.get("LLM_LADDER_CACHE")
    return (Path(cache) if cache else Path.home() / ".cache" / "llm-ladder") / "traces"


def read_trace(name: TraceName, folder: Path | None = None) -> tuple:
    """The rows or the conversations of a trace. Raises ScheduleError when it is not there (with the command
    that gets it), is not the file that its hash names, or cannot be parsed."""
    path = (folder or trace_folder()) / TRACES[name].file
    to = f" --to {folder}" if folder else ""
    if not path.is_file():
        raise ScheduleError(
            f"trace {name} is not at {path}; get it with: python -m harness.workload.traces fetch {name}{to}"
        )
    _check_content(name, path.read_bytes(), str(path))
    return TRACES[name].parse(path)


def fetch(name: TraceName, folder: Path, *, source: Path | None = None, base: str = SOURCE) -> Path:
    """Bring a trace into a folder, from a local folder or by URL below `base`; its file there.

    A file that is there and whole stays. The file gets its name only once its hash is right. Raises
    ScheduleError when the source cannot be read or holds other bytes.
    """
    trace = TRACES[name]
    target = folder / trace.file
    if target.is_file() and hashlib.sha256(target.read_bytes()).hexdigest() == trace.sha256:
        return target
    origin = (
        f"{base}/{trace.repository}/{trace.commit}/{trace.path}" if source is None else source / trace.file
    )
    try:
        if isinstance(origin, Path):
            content = origin.read_bytes()
        else:
            with urllib.request.urlopen(origin, timeout=TIMEOUT_S) as response:
                content = response.read()
        _check_content(name, content, str(origin))
        folder.mkdir(parents=True, exist_ok=True)
        put(content, target)
    except (OSError, HTTPException) as error:
        raise ScheduleError(f"trace {name}: cannot bring {origin} to {target}: {error}") from error
    return target


def _check_content(name: TraceName, content: bytes, origin: str) -> None:
    found, wanted = hashlib.sha256(content).hexdigest(), TRACES[name].sha256
    if found != wanted:
        raise ScheduleError(f"trace {name}: {origin} has SHA-256 {found}, must have {wanted}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m harness.workload.traces", description="public request traces"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    getting = commands.add_parser("fetch", help="bring traces here, checked by their SHA-256")
    getting.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(TRACES)}; all when none is given"
    )
    getting.add_argument(
        "--from", dest="source", type=Path, metavar="FOLDER", help="copy from here, not by URL"
    )
    getting.add_argument("--to", dest="folder", type=Path, metavar="FOLDER", default=trace_folder())
    asked = parser.parse_args(arguments)
    if unknown := [name for name in asked.names if name not in TRACES]:
        parser.error(f"no trace {unknown[0]!r}; there are {', '.join(get_args(TraceName))}")
    try:
        for name in asked.names or TRACES:
            print(f"{fetch(name, asked.folder, source=asked.source)}: {TRACES[name].terms}")
    except ScheduleError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
