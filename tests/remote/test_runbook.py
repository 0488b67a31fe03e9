"""RUNBOOK.md and README.md say what the scripts say."""

from __future__ import annotations

import re

from tests.remote.checkout import ROOT, Checkout

RUNBOOK = (ROOT / "RUNBOOK.md").read_text()


def test_every_built_stage_is_described(checkout: Checkout) -> None:
    built = checkout.stage("--help").stdout
    described = re.findall(r"^\| `(\w+)` \|", RUNBOOK.partition("## Flags")[0], re.MULTILINE)
    assert described == re.findall(r"^  (\w+)  +\w", built, re.MULTILINE)


def test_needs_of_a_gpu_box_are_those_of_its_script(checkout: Checkout) -> None:
    said = checkout.call("remote/setup_gpu_box.sh", "--help").stdout
    separate, linked = re.findall(r"(\d+) GB(?:,| where)", said)
    driver, memory = re.findall(r"driver >= (\d+), (\d+) GB", said)[0]
    section = " ".join(RUNBOOK.partition("## A GPU box")[2].partition("## ")[0].split())
    assert f"driver of version {driver} or newer" in section
    assert f"{memory} GB of memory" in section
    assert f"{linked} GB for all three" in section
    assert f"else {separate} GB" in section


def test_folders_of_the_map_exist() -> None:
    rows = re.findall(r"^\| `([\w/.]+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert rows
    assert [path for path in rows if not (ROOT / path).exists()] == []


def test_every_reason_of_a_verdict_is_explained() -> None:
    codes = re.findall(r'"(\w+): ', (ROOT / "harness/verdict.py").read_text().partition("def _notes")[0])
    assert len(codes) > 8
    assert [code for code in codes if code not in RUNBOOK] == []
