from __future__ import annotations

import pytest

from remote.errors import RemoteError
from remote.labels import PREFIX, Label, make_label, parse_label


def test_round_trip() -> None:
    label = make_label(PREFIX, "2026-11-30.night_1", 1_800_000_000)
    assert str(label) == "llm-ladder/2026-11-30.night_1/1800000000"
    assert parse_label(str(label)) == label == Label(PREFIX, "2026-11-30.night_1", 1_800_000_000)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "p",
        "p/run",
        "p/run/",
        "p/run/180000000",
        "p/run/0180000000",
        "p/run/18000000001",
        "p/run/1800000000\n",
        "p/a/b/1800000000",
        "x p/run/1800000000",
        "p/run/1٨٠٠٠٠٠٠٠٠",
    ],
)
def test_what_is_no_whole_label(text: str) -> None:
    assert parse_label(text) is None


@pytest.mark.parametrize("run", ["", "a/b", "a b", "-a", ".a", "a\n", "é"])
def test_a_run_id_that_cannot_be_read_back(run: str) -> None:
    with pytest.raises(RemoteError, match="run id"):
        make_label(PREFIX, run, 1_800_000_000)


def test_a_label_that_is_too_long() -> None:
    assert make_label(PREFIX, "r" * 38, 1_800_000_000)
    with pytest.raises(RemoteError, match="61 characters, the limit is 60"):
        make_label(PREFIX, "r" * 39, 1_800_000_000)


@pytest.mark.parametrize("deadline", [0, 17, 999_999_999, 10_000_000_000, -1_800_000_000])
def test_a_deadline_that_is_none(deadline: int) -> None:
    with pytest.raises(RemoteError, match="10 digits"):
        make_label(PREFIX, "run", deadline)
