"""Small traces in the formats of the public ones, and where copies of those may lie."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.workload.traces import TRACES

COPIES = Path(__file__).parents[4] / "shared" / "traces"

needs_copies = pytest.mark.skipif(not COPIES.is_dir(), reason="no local copies of the public traces")

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 23:59:59.9000000,30,4\r\n"
    "2023-11-16 23:59:59.9000001,7,1\r\n"
    "2023-11-17 00:00:01.9000000,120,9\r\n"
    "2023-11-17 00:00:03.8999999,2,70"
)


def mooncake(*rows: tuple[int, int, int, list[int]]) -> str:
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    return "".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows)


MOONCAKE = mooncake(
    (0, 1_100, 5, [0, 1, 2]),
    (0, 1_030, 6, [0, 1, 3]),
    (0, 512, 7, [0]),
    (3_000, 20, 8, [4]),
    (3_000, 600, 9, [0, 5]),
    (5_999, 40, 2, [6]),
)


def agentic(conversation_id: str, answers: list[str], delays_s: list[float]) -> list[dict]:
    lines: list[dict] = [
        {
            "role": "user",
            "system": "Be brief.",
            "tools": [{"name": "bash"}],
            "content": "Fix the ä.",
        }
    ]
    for place, answer in enumerate(answers):
        if place:
            results = [{"tool_call_id": "x", "content": f"result {place}"}]
            lines.append({"role": "tool", "tool_results": results, "delay_seconds": delays_s[place - 1]})
        call = {"id": "x", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
        lines.append({"role": "assistant", "reasoning_content": answer, "tool_calls": [call]})
    return [
        {"conversation_id": conversation_id, "turn": turn} | line for turn, line in enumerate(lines, start=1)
    ]


def json_lines(lines: list[dict]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


AGENTIC = json_lines(
    agentic("first", ["Look around first.", "Now edit.", "Done."], [0.368331, 2.5])
    + agentic("second", ["One look is enough.", "Finished, I think."], [1.0])
)

CONTENT = {
    "azure_code": AZURE,
    "azure_conv": AZURE,
    "mooncake_conversation": MOONCAKE,
    "mooncake_synthetic": MOONCAKE,
    "agentic_coding": AGENTIC,
}


@pytest.fixture
def made_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with small traces in place of the public ones."""
    folder = tmp_path / "traces"
    folder.mkdir()
    for name, content in CONTENT.items():
        (folder / TRACES[name].file).write_bytes(content.encode())
        sha256 = hashlib.sha256(content.encode()).hexdigest()
        monkeypatch.setitem(TRACES, name, replace(TRACES[name], sha256=sha256))
    return folder
