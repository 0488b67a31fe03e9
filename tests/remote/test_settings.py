from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest

from remote.errors import RemoteError
from remote.settings import ROOT, load, stages_of

RENTED = """
gpu = "H200"
image = "vendor/image:1"
max_dollars_per_hour = 4.0
hours = 3
dollars = 9
stages = ["smoke"]
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "night.toml"
    file.write_text(text)
    return file


def test_one_box(tmp_path: Path) -> None:
    (settings,) = load(written(tmp_path, RENTED)).values()
    assert (settings.provider, settings.rented, settings.systems) == (
        "vast",
        True,
        ("project", "vllm", "sglang"),
    )
    assert (settings.caps.hours, settings.caps.dollars) == (3, 9)
    assert (settings.wanted.gpu, settings.wanted.num_gpus, settings.wanted.driver) == ("H200", 1, 580)


def test_tables_of_boxes_say_what_is_other(tmp_path: Path) -> None:
    text = RENTED + '[boxes.a]\n[boxes.b]\ngpu = "H100 SXM"\nstages = ["compare", "test"]\n'
    boxes = load(written(tmp_path, text))
    assert {name: (box.gpu, box.stages) for name, box in boxes.items()} == {
        "a": ("H200", ("smoke",)),
        "b": ("H100 SXM", ("compare", "test")),
    }


def test_a_box_of_ones_own(tmp_path: Path) -> None:
    own = 'provider = "ssh:box:2222"\nhours = 2\nstages = ["all"]\n'
    with pytest.raises(RemoteError, match="a box of one's own needs `key`"):
        load(written(tmp_path, own))
    (settings,) = load(written(tmp_path, own + 'key = "~/.ssh/id"\n')).values()
    assert not settings.rented


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('gpu = "H200"', ""),
        ("hours = 0", r"hours: Input should be greater than 0 \(given: 0\)"),
        ("hours = inf", r"hours: .*finite number \(given: inf\)"),
        ("dollars = 0", "provider 'vast' needs dollars"),
        ('image = ""', "provider 'vast' needs image"),
        ("num_gpus = 17", r"num_gpus: .*less than or equal to 16 \(given: 17\)"),
        ("cost = 1", r"cost: Extra inputs are not permitted \(given: 1\)"),
        ('stages = ["smoek"]', "unknown stage 'smoek'; there are: .*smoke.*test, figures, all"),
        ("stages = []", "stages: .*at least 1 item"),
        ('systems = ["tensorrt"]', "systems.0: .*'vllm'"),
        ("boxes = 1", r"boxes must be tables \[boxes.NAME\]"),
        ("[boxes.'a b']", "box 'a b': must be of letters"),
        ("= 1", "cannot be read: Invalid"),
    ],
)
def test_what_is_wrong_is_named_with_its_value(tmp_path: Path, change: str, message: str) -> None:
    name = change.partition(" =")[0]
    kept = [line for line in RENTED.splitlines() if not line.startswith(f"{name} =")]
    file = written(tmp_path, "\n".join([*kept, change]))
    if not message:
        assert load(file)
        return
    with pytest.raises(RemoteError, match=message):
        load(file)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(RemoteError, match=r"settings .*night.toml cannot be read"):
        load(tmp_path / "night.toml")


def test_stages_are_those_that_there_are(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "harness" / "stages", tmp_path / "harness" / "stages")
    (tmp_path / "harness" / "stages" / "new.toml").write_text("")
    assert "new" in stages_of(tmp_path) and "new" not in stages_of(ROOT)


def test_the_settings_of_the_runbook_are_good(tmp_path: Path) -> None:
    section = (ROOT / "RUNBOOK.md").read_text().partition("## From an API key to figures")[2]
    blocks = [block.partition("```")[0] for block in section.partition("\n## ")[0].split("```toml\n")[1:]]
    assert len(blocks) == 3
    for block in (blocks[0], blocks[0] + blocks[1], blocks[2]):
        tomllib.loads(block)
        assert load(written(tmp_path, block))
