"""The sentence on the GPU tests says what their receipt holds."""

from pathlib import Path

import pytest

from figures.gpu_tests import sentence
from figures.make_tables import with_tables

HEAD = "git_commit,dirty,gpu,torch,triton,started_at,test,result,seconds\n"
ROW = "0123456789abcdef,False,NVIDIA H200,2.11.0,3.6.0,2026-11-30T20:00:00+00:00,{},{},0.5\n"


def receipt(folder: Path, *results: str) -> Path:
    path = folder / "gpu_tests.csv"
    path.write_text(HEAD + "".join(ROW.format(f"t{i}", result) for i, result in enumerate(results)))
    return path


def test_outcomes_are_counted(tmp_path: Path) -> None:
    assert sentence(receipt(tmp_path, "passed", "failed", "passed")) == (
        "GPU tests (`pytest -m gpu`) at commit 0123456789ab: 2 passed, 1 failed; one NVIDIA H200, "
        "PyTorch 2.11.0, Triton 3.6.0.\n"
    )


def test_two_commits_are_no_receipt(tmp_path: Path) -> None:
    path = receipt(tmp_path, "passed", "passed")
    path.write_text(path.read_text().replace("0123456789abcdef", "ffff", 1))
    with pytest.raises(ValueError, match="2 commits or machines"):
        sentence(path)


def test_the_sentence_is_written_between_its_marks(tmp_path: Path) -> None:
    receipt(tmp_path, "passed")
    (tmp_path / "v1").mkdir()
    text = "a\n<!-- gpu-tests:begin gpu_tests.csv -->\nold\n<!-- gpu-tests:end -->\nb\n"
    made = with_tables(text, tmp_path / "v1")
    assert "1 passed" in made and "old" not in made and made.endswith("<!-- gpu-tests:end -->\nb\n")
