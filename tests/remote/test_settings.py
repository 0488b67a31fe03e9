from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest

from remote.errors import RemoteError
from remote.settings import ROOT, load, of_json, stages_of

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
    with pytest.raises(RemoteError, match=r"key: there is no file .*/id"):
        load(written(tmp_path, own + 'key = "id"\n'))
    (tmp_path / "id").touch()
    (settings,) = load(written(tmp_path, own + 'key = "id"\n')).values()
    assert not settings.rented and settings.key == tmp_path / "id"


def test_wheelhouses_lie_beside_the_file(tmp_path: Path) -> None:
    """Not in the folder where `fab` is called; what is not there is noticed before anything costs money."""
    text = RENTED + 'wheelhouses = ["none.house"]\n'
    with pytest.raises(RemoteError, match=r"there is no MANIFEST.json in .*none.house"):
        load(written(tmp_path, text))
    (tmp_path / "none.house").mkdir()
    (tmp_path / "none.house" / "MANIFEST.json").touch()
    (settings,) = load(written(tmp_path, text)).values()
    assert settings.wheelhouses == (tmp_path / "none.house",)


def test_what_is_kept_for_a_run_is_read_back(tmp_path: Path) -> None:
    (settings,) = load(written(tmp_path, RENTED + "gpu_ram_gb = 80\n")).values()
    assert of_json(settings.model_dump_json(), tmp_path) == settings


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('gpu = "H200"', ""),
        ("hours = 0", r"hours: Input should be greater than 0 \(given: 0\)"),
        ("hours = inf", r"hours: .*less than or equal to 720 \(given: inf\)"),
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
        ("hours = -1", r"hours: .*greater than 0 \(given: -1\)"),
        ("hours = nan", r"hours: .*given: nan"),
        ("hours = 721", r"hours: .*less than or equal to 720 \(given: 721\)"),
        ("hours = true", r"hours: .*valid number \(given: True\)"),
        ('hours = "3"', r"hours: .*valid number \(given: '3'\)"),
        ("dollars = -1", "dollars: .*greater than or equal to 0"),
        ("dollars = nan", r"dollars: .*given: nan"),
        ("max_dollars_per_hour = nan", "max_dollars_per_hour: .*given: nan"),
        ("max_dollars_per_hour = -1", "max_dollars_per_hour: .*greater than or equal to 0"),
        ("gpu_ram_gb = inf", "gpu_ram_gb: .*less than or equal to 10000"),
        ("gpu_ram_gb = nan", "gpu_ram_gb: .*given: nan"),
        ("gpu_ram_gb = -1", "gpu_ram_gb: .*greater than or equal to 0"),
        ("num_gpus = 0", "num_gpus: .*greater than or equal to 1"),
        ("num_gpus = true", "num_gpus: .*valid integer"),
        ("disk_gb = 9", "disk_gb: .*greater than or equal to 10"),
        ("disk_gb = 100001", "disk_gb: .*less than or equal to 100000"),
        ('gpu = " "', r"gpu: .*given: ' '"),
        ('image = "-v /:/x"', "image: .*given: '-v /:/x'"),
        ('user = ""', "user: .*at least 1 character"),
        ('user = "-oProxyCommand=x"', "user: .*given: '-oProxyCommand=x'"),
        ('key = "id"', "`key` is for a box of one's own"),
        ('provider = "vasst"', r"unknown provider; there are: vast, ssh:HOST\[:PORT\] \(given: 'vasst'\)"),
        ('provider = "ssh:-oX"', "provider: .*must be HOST or HOST:PORT"),
        ('stages = ["smoke", "smoke"]', "stages: .*named twice: smoke"),
        ('systems = ["vllm", "vllm"]', "systems: .*named twice: vllm"),
        ('stages = "smoke"', "stages: .*valid tuple"),
        ('flags = ["--results=x"]', "flags: .*--results=x is set by the campaign itself"),
        ('flags = ["--run", "x"]', "flags: .*--run is set by the campaign itself"),
        ("exclude_machines = [102]", "exclude_machines.0: .*valid string"),
        ("boxes = {}", r"boxes must be tables"),
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


def test_the_settings_of_the_runbook_are_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "id_ed25519").touch()
    section = (ROOT / "RUNBOOK.md").read_text().partition("## From an API key to figures")[2]
    blocks = [block.partition("```")[0] for block in section.partition("\n## ")[0].split("```toml\n")[1:]]
    assert len(blocks) == 3
    for block in (blocks[0], blocks[0] + blocks[1], blocks[2]):
        tomllib.loads(block)
        assert load(written(tmp_path, block))
