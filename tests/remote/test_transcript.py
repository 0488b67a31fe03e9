"""The whole campaign with the real `run_stage.sh smoke`, and the transcript of it that docs/ holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.verify import verify
from tests.remote.fake_vast import KEY
from tests.remote.rented import ROOT
from tests.remote.transcript import COMMANDS, transcript


@pytest.mark.slow  # the real smoke stage on a CPU
@pytest.mark.timeout(900)
def test_a_campaign_with_the_real_stage(tmp_path: Path) -> None:
    text = transcript(tmp_path)
    assert "night: smoke ok; " in text and "night-smoke is in results/night-smoke" in text
    assert verify(tmp_path / "results" / "night-smoke") == []
    check(text)


def test_the_transcript_in_docs() -> None:
    """It shows every command, and nothing of the machine that wrote it."""
    text = (ROOT / "docs" / "campaign.md").read_text()
    assert [line[2:] for line in text.splitlines() if line.startswith("$ ")] == list(map(" ".join, COMMANDS))
    assert "night: smoke ok; " in text
    check(text)


def check(text: str) -> None:
    assert KEY not in text
    assert re.findall(r"(?<![\w.~])/(?:root|home|tmp|work|usr|var|opt)/\S*", text) == []
