"""What a run holds: the columns of its tables and the fields of its manifest, declared once.

The CSV writer, the reader, the checks and RUNBOOK.md all follow these declarations. A new column goes to the
end of its table, so that older readers keep working, and has a default, which older rows get.
"""

from __future__ import annotations

from harness.schema.kernels import (
    AttentionRow,
    AttentionSampleRow,
    KernelRow,
    ProfileRow,
    StepsRow,
    StepTimeRow,
)
from harness.schema.manifest import (
    CellRecord,
    ClientCeiling,
    Environment,
    GpuInfo,
    Hardware,
    KneeSearch,
    Manifest,
    ModelInfo,
    ReferenceCheck,
    ScheduleInfo,
    ServerLaunch,
    Session,
    Source,
    Started,
    StoredFile,
)
from harness.schema.record import Record, column_names, described, unit_of
from harness.schema.serving import (
    CorrectnessRow,
    EventRow,
    GpuSampleRow,
    KneeRow,
    ReceivedRow,
    RequestRow,
    RequestStatus,
    ServingRow,
)

__all__ = [
    "MANIFEST_PARTS",
    "RECEIVED_BIN_MS",
    "SCHEMA_VERSION",
    "TABLES",
    "AttentionRow",
    "AttentionSampleRow",
    "CellRecord",
    "ClientCeiling",
    "CorrectnessRow",
    "Environment",
    "EventRow",
    "GpuInfo",
    "GpuSampleRow",
    "Hardware",
    "KernelRow",
    "KneeRow",
    "KneeSearch",
    "Manifest",
    "ModelInfo",
    "ProfileRow",
    "ReceivedRow",
    "Record",
    "ReferenceCheck",
    "RequestRow",
    "RequestStatus",
    "ScheduleInfo",
    "ServerLaunch",
    "ServingRow",
    "Session",
    "Source",
    "Started",
    "StepTimeRow",
    "StepsRow",
    "StoredFile",
    "column_names",
    "described",
    "markdown",
    "unit_of",
]

SCHEMA_VERSION = 1
RECEIVED_BIN_MS = 10

TABLES: dict[str, type[Record]] = {
    "serving.csv": ServingRow,
    "requests.csv.gz": RequestRow,
    "events.csv.gz": EventRow,
    "correctness.csv": CorrectnessRow,
    "gpu_samples.csv.gz": GpuSampleRow,
    "received.csv.gz": ReceivedRow,
    "knee.csv": KneeRow,
    "steps.csv": StepsRow,
    "profile.csv": ProfileRow,
    "step_times.csv.gz": StepTimeRow,
    "kernels.csv.gz": KernelRow,
    "attention.csv": AttentionRow,
    "attention_samples.csv.gz": AttentionSampleRow,
}
MANIFEST_PARTS: tuple[type[Record], ...] = (
    Manifest,
    Source,
    Hardware,
    GpuInfo,
    Environment,
    ServerLaunch,
    ModelInfo,
    ScheduleInfo,
    ClientCeiling,
    ReferenceCheck,
    CellRecord,
    KneeSearch,
    Session,
    StoredFile,
)


def _markdown_table(row: type[Record], heading: str) -> str:
    lines = [f"#### {heading}", "", row.__doc__ or "", "", "| name | unit | meaning |", "| --- | --- | --- |"]
    lines += [
        f"| `{name}` | {unit_of(field)} | {field.description} |" for name, field in row.model_fields.items()
    ]
    return "\n".join(lines)


def markdown() -> str:
    """Every table and manifest part as markdown, ending in a newline; RUNBOOK.md holds exactly this text."""
    tables = [_markdown_table(row, f"`{file}`") for file, row in TABLES.items()]
    parts = [
        _markdown_table(part, "`manifest.json`" if part is Manifest else f"`manifest.json`: {part.__name__}")
        for part in MANIFEST_PARTS
    ]
    return "\n\n".join([*tables, *parts]) + "\n"
