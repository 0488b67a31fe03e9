import re
from pathlib import Path

from harness.schema import MANIFEST_PARTS, TABLES, ServingRow, column_names, markdown

ROOT = Path(__file__).parents[2]

PROMISED = """
    schema_version run cell box gpu gpu_uuid num_gpus system system_version config model weights dtype
    tensor_parallel replicas speculation accepted_per_step workload load concurrency rate_rps schedule_sha256
    prefix_cache cached_tokens repetition position started_at verdict reasons requests failed prompt_tokens
    output_tokens window_s output_tokens_per_s requests_per_s ttft_ms_p50 ttft_ms_p99 tpot_ms_p50 tpot_ms_p99
    e2e_ms_p50 e2e_ms_p99 attainment goodput_rps events_per_token token_count_method lag_ms_p99
    client_headroom joules_per_token git_commit dirty lock_sha256
"""


def test_serving_csv_begins_with_the_promised_columns_in_their_order():
    assert column_names(ServingRow)[: len(PROMISED.split())] == PROMISED.split()


def test_every_field_is_described_and_measured_ones_have_the_unit_of_their_name():
    for row in (*TABLES.values(), *MANIFEST_PARTS):
        for name, field in row.model_fields.items():
            assert field.description, f"{row.__name__}.{name}"
            found = re.search(r"_(ms|ns|us|mj|mw|mhz|c|rps|bytes)(_p\d+)?$", name)
            unit = {"mj": "mJ", "mw": "mW", "mhz": "MHz", "c": "degC", "rps": "requests/s"}
            if found:
                assert field.json_schema_extra["unit"] == unit.get(found[1], found[1]), (
                    f"{row.__name__}.{name}"
                )


def test_the_runbook_holds_the_declared_columns():
    text = (ROOT / "RUNBOOK.md").read_text()
    held = re.search(r"<!-- columns:begin -->\n(.*?)<!-- columns:end -->", text, re.DOTALL)
    assert held, "RUNBOOK.md has no columns:begin and columns:end"
    assert held[1].strip() == markdown().strip(), (
        "put the output of `python -m harness columns` between the markers"
    )
