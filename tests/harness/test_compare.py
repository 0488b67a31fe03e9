"""The command `compare`, on complete runs with known truth."""

import argparse
import json

import pandas as pd
import pytest

from harness.compare import read_side, register
from harness.errors import BadInput
from harness.schema import SCHEMA_VERSION, Manifest, RequestRow, ServingRow, StoredFile
from harness.store import sha256_of
from harness.tables import compress, records_to_csv
from tests.harness.made import MS, identity, record, tables
from tests.harness.made_serving import repetitions, scaled


@pytest.fixture
def results(tmp_path):
    """Complete runs: `base` (two systems, mirrored order), `again` (its engine 7 % slower), `once`."""
    values = scaled(1.0)
    base = [
        each.model_copy(update={"run": "base", "system": system, "position": place, "box": "box-1"})
        for system, ratio in (("engine", 1.0), ("vllm", 0.8))
        for number, each in enumerate(repetitions([ratio * value for value in values]))
        for place in [2 * number + ((system == "vllm") ^ (number % 2))]
    ]
    again = [
        each.model_copy(update={"run": "again", "output_tokens_per_s": 0.93 * each.output_tokens_per_s})
        for each in base
        if each.system == "engine"
    ]
    for name, rows in (("base", base), ("again", again), ("once", repetitions([100.0], run="once"))):
        store(tmp_path, name, rows)
    return tmp_path


def store(results, name, rows):
    rows = [row.model_copy(update={"cell": f"{row.system}-{row.repetition}"}) for row in rows]
    known, table = identity(), records_to_csv(ServingRow, rows)
    requests = [request for row in rows for request in two_requests(row)]
    (results / name).mkdir()
    (results / name / "serving.csv").write_bytes(table)
    texts = compress("requests.csv.gz", records_to_csv(RequestRow, requests))
    (results / name / "requests.csv.gz").write_bytes(texts)
    manifest = Manifest(
        schema_version=SCHEMA_VERSION, run=name, stage="aa", stage_sha256="", created_at="", finished_at="",
        command=[], source=known.source, box=known.box, hardware=known.hardware, environments={}, servers=[],
        model=known.model, schedules=[], client_ceiling=None, reference_check=None, cells=[],
        files=[
            StoredFile(path=path, sha256=sha256_of(content), bytes=len(content))
            for path, content in (("serving.csv", table), ("requests.csv.gz", texts))
        ],
        logs=[],
        complete=True,
    )  # fmt: skip
    (results / name / "manifest.json").write_text(manifest.model_dump_json())


def two_requests(row):
    """Every system answers the first one alike, the second one in its own way."""
    frame = tables([record(0, 0, [(10 * MS, 1)]), record(1, 0, [(10 * MS, 1)])], row.cell).requests
    for request, text in zip(frame.to_dict("records"), ("0" * 16, f"{row.system:0<16}"), strict=True):
        yield RequestRow(
            **{k: None if pd.isna(v) else v for k, v in request.items()} | {"output_sha256": text}
        )


def command(results, *arguments):
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    args = parser.parse_args(["compare", *arguments, "--results", str(results)])
    return args.command(args, [])


def plain(capsys) -> str:
    """What was printed, with its line breaks and columns undone."""
    return " ".join(capsys.readouterr().out.split())


def test_two_systems_of_a_run_on_the_command_line(results, capsys):
    assert command(results, "base/engine", "base/vllm") == 0
    said = capsys.readouterr().out
    assert "A = base/engine" in said and "B = base/vllm" in said
    assert "output_tokens_per_s (higher is better)" in said
    assert "0.800 [0.800, 0.800]" in said and "B worse" in said
    assert "drift over the order of base" in said and "does not cancel" not in said
    assert "same text in 6 of 12 requests (50.0%)" in said
    assert max(map(len, said.splitlines())) <= 80


def test_gates_on_the_command_line(results, capsys):
    assert command(results, "base", "again", "--max-loss", "0.05") == 1
    said = plain(capsys)
    assert "--max-loss 0.05 asks that no interval, of a load or pooled, lies wholly below 0.95" in said
    assert "broken by again/engine: c8: 0.930" in said and said.endswith("BROKEN")
    assert "left out: vllm: only A has it" in said
    assert command(results, "base", "again", "--max-loss", "0.1") == 0
    assert plain(capsys).endswith("kept")
    assert command(results, "base", "again", "--within", "0.05") == 1
    assert command(results, "base", "again", "--within", "0.1") == 0


def test_the_command_for_programs(results, capsys):
    assert command(results, "base", "again", "--max-loss", "0.05", "--json") == 1
    said = json.loads(capsys.readouterr().out)
    (comparison,) = said["comparisons"]
    (load,) = comparison["loads"]
    assert load["interval"]["ratio"] == pytest.approx(0.93) and load["interval"]["pairs"] == 6
    assert load["verdict"] == "B worse" and len(load["pairs"]) == 6
    assert said["unmatched"] == ["vllm: only A has it"]
    assert len(said["breaches"]) == 1 and said["doubts"] == [] and said["rule"].startswith("--max-loss 0.05")


def test_a_run_of_one_repetition_says_so(results, capsys):
    assert command(results, "base", "once") == 0
    said = capsys.readouterr().out
    assert "one repetition, hence no interval: c8" in said and "no interval" in said
    assert "left out: c8, repetition 5: only A has it" in said
    with pytest.raises(BadInput, match="too few pairs"):
        command(results, "base", "once", "--within", "0.05")


def test_sides_are_runs_folders_or_systems_of_them(results):
    assert read_side("base", results).label == "base"
    assert read_side(str(results / "base"), results / "elsewhere").label == "base"
    assert read_side("base/vllm:tuned", results).label == "base/vllm:tuned"
    assert read_side(f"{results}/base/engine", results).label == "base/engine"
    assert read_side("base/engine:default", results).label == "base/engine"
    for unknown in ("bases", "bases/engine", ""):
        with pytest.raises(BadInput, match=f"no run '{unknown}' in .*; there are: again, base, once"):
            read_side(unknown, results)


@pytest.mark.parametrize("share", ["1", "-0.1", "five"])
def test_a_limit_that_is_no_share_is_refused(results, share):
    with pytest.raises(SystemExit) as exit:
        command(results, "base", "again", "--max-loss", share)
    assert exit.value.code == 2
