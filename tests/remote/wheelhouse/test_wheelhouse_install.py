"""remote/wheelhouse.sh makes the environment of the lock without a registry, or says why it cannot."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.remote.checkout import ROOT
from tests.remote.wheelhouse.world import (
    MINOR,
    OTHER_MINOR,
    UV,
    Box,
    Packer,
    Registry,
    lock,
    make_wheel,
    sha256,
)


@pytest.fixture
def packer(packer: Packer, registry: Registry) -> Packer:
    """All it packs is in its cache."""
    shutil.copytree(registry.folder, packer.cache)
    return packer


@pytest.fixture
def house(packer: Packer, tmp_path: Path) -> Path:
    """The environment of vllm, for the Python of the box, with uv."""
    packer.pack(tmp_path / "a house", "vllm", with_uv=True)
    return tmp_path / "a house"


def failed(done: subprocess.CompletedProcess[str], said: str, status: int = 1) -> None:
    assert done.returncode == status, done.stderr
    assert said in done.stderr
    assert "line " not in done.stderr, "bash itself complained"


def leftovers(box: Box) -> set[str]:
    return {path.name for path in box.root.iterdir()} - {"remote", "pyproject.toml", "uv.lock", ".setup.lock"}


def test_help_and_wrong_arguments(box: Box, house: Path) -> None:
    assert "usage: bash remote/wheelhouse.sh install FOLDER" in box.call("--help").stdout
    failed(box.call(), "unknown command ''", 2)
    failed(box.call("install"), "install needs the folder of a wheelhouse", 2)
    failed(box.install(house, "--into"), "--into needs a folder", 2)
    failed(box.install(house, "--force"), "unknown flag '--force'", 2)
    assert leftovers(box) == set()


def test_it_makes_the_environment_where_set_up_would_and_can_be_called_again(box: Box, house: Path) -> None:
    done = box.install(house)
    assert done.returncode == 0, done.stderr
    assert box.imported(".venv-vllm", "gamma") == "2.0"
    assert box.imported(".venv-vllm", "alpha") == "1.0"
    assert box.imported(".venv-vllm", "epsilon") == ""
    assert leftovers(box) == {".uv", ".venv-vllm"}
    stamp = box.root / ".venv-vllm/wheelhouse.json"
    assert stamp.read_bytes() == (house / "MANIFEST.json").read_bytes()

    made = (box.root / ".venv-vllm/pyvenv.cfg").stat().st_mtime_ns
    (house / "part-0000").unlink()
    again = box.install(house)
    assert again.returncode == 0
    assert "is ready: it matches" in again.stderr
    assert (box.root / ".venv-vllm/pyvenv.cfg").stat().st_mtime_ns == made


def test_systems_live_beside_each_other_and_the_project_has_its_development_tools(
    box: Box, house: Path, packer: Packer, tmp_path: Path
) -> None:
    packer.pack(tmp_path / "none", "none")
    packer.pack(tmp_path / "sglang", "sglang")
    for folder in (house, tmp_path / "none", tmp_path / "sglang"):
        assert box.install(folder).returncode == 0
    assert box.imported(".venv", "epsilon") == "1.0"
    assert box.imported(".venv-sglang", "gamma") == "1.0"
    assert box.imported(".venv-vllm", "gamma") == "2.0"


def test_into_is_a_folder_seen_from_where_one_is(box: Box, house: Path) -> None:
    assert box.install(house, "--into", "some where/env").returncode == 0
    python = box.root.parent / "some where/env/bin/python"
    assert subprocess.run([python, "-c", "import gamma"]).returncode == 0
    assert leftovers(box) == {".uv"}


def test_parts_that_are_missing_or_damaged_are_named_together(box: Box, house: Path) -> None:
    (house / "part-0001").unlink()
    content = bytearray((house / "part-0002").read_bytes())
    content[7] ^= 1
    (house / "part-0002").write_bytes(content)
    failed(box.install(house), "are missing: part-0001; damaged: part-0002; send these again")
    assert leftovers(box) == set()


def test_a_manifest_that_is_missing_cut_off_or_of_another_format(box: Box, house: Path) -> None:
    manifest = house / "MANIFEST.json"
    text = manifest.read_text()
    manifest.write_text(text[: len(text) // 2])
    failed(box.install(house), "MANIFEST.json is cut off: send it again")
    manifest.write_text(text.replace('"format": 1', '"format": 2'))
    failed(box.install(house), "has format '2', this checkout reads 1")
    manifest.unlink()
    failed(box.install(house), "has no MANIFEST.json")


def test_another_lock_is_refused(box: Box, house: Path) -> None:
    with (box.root / "uv.lock").open("a") as lock:
        lock.write("\n")
    failed(box.install(house), f"here {sha256(box.root / 'uv.lock')}): pack it again from this checkout")


def test_wheels_that_are_not_those_of_the_lock_are_refused(
    box: Box, packer: Packer, registry: Registry, tmp_path: Path
) -> None:
    """Even where manifest and parts agree: whoever carried them is not trusted."""
    house = tmp_path / "house"
    packer.pack(house, "vllm")
    wheel = make_wheel(packer.cache, "gamma", "2.0", content={"gamma.py": "evil = True\n"})
    right = sha256(registry.folder / wheel.name)
    manifest = (house / "MANIFEST.json").read_text()
    assert right in manifest
    (house / "MANIFEST.json").write_text(manifest.replace(right, sha256(wheel)))
    box.add_uv()
    failed(box.install(house), "1 wheels are not those of uv.lock: gamma-2.0-py3-none-any.whl")
    assert not (box.root / ".venv-vllm/wheelhouse.json").exists()


def test_wheels_that_differ_from_the_manifest_are_refused_by_uv(
    box: Box, packer: Packer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packer.pack(tmp_path / "first", "vllm")
    make_wheel(packer.cache, "gamma", "2.0", content={"gamma.py": "evil = True\n"})
    monkeypatch.setattr("remote.wheelhouse.pack.load_wheels", lambda *_: None)
    packer.pack(tmp_path / "house", "vllm")
    box.add_uv()
    failed(box.install(tmp_path / "house"), "uv could not fill")
    assert box.imported(".venv-vllm", "gamma") == ""


def test_the_wrong_python_is_named_before_anything_is_unpacked(
    box: Box, packer: Packer, tmp_path: Path
) -> None:
    packer.pack(tmp_path / "house", "vllm", OTHER_MINOR, with_uv=True)
    failed(
        box.install(tmp_path / "house"),
        f"is for CPython {OTHER_MINOR}, seen are: {box.path}/python{MINOR} ({MINOR}.",
    )
    failed(
        box.install(tmp_path / "house", PYTHON="/nowhere/python"), "seen are: /nowhere/python (does not run)"
    )
    assert leftovers(box) == set()


def test_a_disk_that_is_too_small(box: Box, house: Path) -> None:
    box.write_program(box.path / "df", "#!/bin/sh\necho head; echo disk 0 0 100 0% /\n")
    failed(box.install(house), "has 0 GB free, needed are 1 GB")
    assert leftovers(box) == set()


def test_a_glibc_that_is_too_old(box: Box, house: Path) -> None:
    box.write_program(box.path / "getconf", "#!/bin/sh\necho glibc 2.9\n")
    needed = json.loads((house / "MANIFEST.json").read_text())["glibc"]
    failed(box.install(house), f"this system has glibc 2.9, needed is {needed} or newer")
    box.write_program(box.path / "getconf", "#!/bin/sh\nexit 1\n")
    failed(box.install(house), f"this system has no glibc, needed is {needed} or newer")


def test_without_uv_anywhere_it_says_how_to_pack_it(box: Box, packer: Packer, tmp_path: Path) -> None:
    packer.pack(tmp_path / "house", "vllm")
    failed(box.install(tmp_path / "house"), "pack with --with-uv")
    box.add_uv()
    assert box.install(tmp_path / "house").returncode == 0


def test_a_uv_that_the_checkout_does_not_pin_is_refused(box: Box, house: Path) -> None:
    (box.root / "remote/uv-requirements.txt").write_text(f"uv==0.13.9 --hash=sha256:{'0' * 64}\n")
    failed(box.install(house), "is not the uv of remote/uv-requirements.txt")
    assert not (box.root / ".uv").exists()


def test_a_folder_that_it_did_not_make_is_left_alone(box: Box, house: Path) -> None:
    mine = box.root / ".venv-vllm/mine"
    mine.parent.mkdir()
    mine.write_text("keep")
    failed(box.install(house), "was not made from a wheelhouse")
    assert mine.read_text() == "keep"


@pytest.mark.parametrize("step", ["venv", "pip sync", "--check"])
def test_killed_at_any_step_the_next_call_makes_it_whole(box: Box, house: Path, step: str) -> None:
    killed = box.root.parent / "killed"
    box.add_uv(f"""[[ " $* " != *' {step} '* || -e '{killed}' ]] || {{
        : >'{killed}'; '{UV}' "$@" >/dev/null 2>&1; kill -9 "$PPID"; exit 9; }}""")
    first = box.install(house)
    assert killed.exists() and first.returncode == -9
    assert not (box.root / ".venv-vllm/wheelhouse.json").exists()
    # What is half installed has to go: uv believes a package's folder of metadata.
    for module in (box.root / ".venv-vllm").rglob("gamma.py"):
        module.unlink()
    assert box.install(house).returncode == 0
    assert box.imported(".venv-vllm", "gamma") == "2.0"
    assert leftovers(box) == {".uv", ".venv-vllm"}


def test_an_environment_that_uv_does_not_find_equal_to_the_lock_is_not_ready(box: Box, house: Path) -> None:
    box.add_uv("[[ \" $* \" != *' --check '* ]] || { echo would install gamma; exit 1; }")
    done = box.install(house)
    failed(done, "does not match uv.lock right after it was made (see above)")
    assert done.stderr.count("would install gamma") == 1
    assert not (box.root / ".venv-vllm/wheelhouse.json").exists()


def test_killed_while_it_unpacks_it_starts_over(box: Box, house: Path) -> None:
    tar = (box.path / "tar").resolve()
    box.write_program(box.path / "tar", f'#!/bin/bash\nhead -c 4000 | {tar} "$@" 2>/dev/null; exit 1\n')
    failed(box.install(house), "cannot unpack the parts")
    assert (box.root / ".venv-vllm.wheelhouse/partial").exists()
    box.write_program(box.path / "tar", f'#!/bin/bash\nexec {tar} "$@"\n')
    assert box.install(house).returncode == 0
    assert leftovers(box) == {".uv", ".venv-vllm"}


def test_a_package_that_is_lost_or_added_is_mended(box: Box, house: Path) -> None:
    assert box.install(house).returncode == 0
    (info,) = (box.root / ".venv-vllm").rglob("gamma-2.0.dist-info")
    info.rename(info.with_name("delta_d-1.0.dist-info"))
    assert box.install(house).returncode == 0
    assert box.imported(".venv-vllm", "gamma") == "2.0"
    assert not list((box.root / ".venv-vllm").rglob("delta_d-1.0.dist-info"))


def test_another_wheelhouse_replaces_the_environment(
    box: Box, house: Path, packer: Packer, tmp_path: Path
) -> None:
    assert box.install(house, "--into", "env").returncode == 0
    packer.pack(tmp_path / "sglang", "sglang")
    assert box.install(tmp_path / "sglang", "--into", "env").returncode == 0
    assert json.loads((box.root.parent / "env/wheelhouse.json").read_text())["extra"] == "sglang"


def test_variables_of_other_environments_change_nothing(box: Box, house: Path) -> None:
    done = box.install(
        house, UV_INDEX_URL="http://127.0.0.1:9", PYTHONPATH="/nowhere", VIRTUAL_ENV="/nowhere"
    )
    assert done.returncode == 0, done.stderr
    assert box.imported(".venv-vllm", "gamma") == "2.0"


def give_cpython(packer: Packer, folder: Path) -> None:
    """A uv that `loads` a CPython: a program that runs the Python of these tests."""
    real = Path(sys.executable).resolve()
    version = "{}.{}.{}".format(*sys.version_info[:3])
    home = folder / "installs" / f"cpython-{version}-linux-x86_64-gnu"
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / f"python{MINOR}"
    program.write_text(f'#!/bin/sh\nexec "{real}" "$@"\n')
    program.chmod(0o755)
    (home / "bin/python3").symlink_to(program.name)
    packer.uv = folder / "uv"
    packer.uv.write_text(f"""#!/bin/bash
[[ "$1" == python ]] || exec "{UV}" "$@"
folder="${{!#}}" folder="${{folder#--install-dir=}}"
cp -R "{home}" "$folder/"
ln -s "{home.name}" "$folder/cpython-{MINOR}-linux-x86_64-gnu"
""")
    packer.uv.chmod(0o755)


def test_a_box_without_any_python_gets_the_packed_one(box: Box, packer: Packer, tmp_path: Path) -> None:
    give_cpython(packer, tmp_path / "loaded")
    manifest = packer.pack(tmp_path / "house", "vllm", with_uv=True, with_python=True)
    (box.path / f"python{MINOR}").unlink()
    done = box.install(tmp_path / "house")
    assert done.returncode == 0, done.stderr
    assert box.imported(".venv-vllm", "gamma") == "2.0"
    cpython = "." + manifest.cpython.removesuffix("-linux-x86_64.tar")
    assert leftovers(box) == {".uv", ".venv-vllm", cpython}
    assert os.access(box.root / cpython / "bin/python3", os.X_OK)
    packer.pack(tmp_path / "sglang", "sglang", with_uv=True, with_python=True)
    assert box.install(tmp_path / "sglang").returncode == 0


def test_the_script_is_clean() -> None:
    shellcheck = Path(sys.executable).parent / "shellcheck"
    if not shellcheck.exists():
        pytest.skip("shellcheck is not in this environment")
    done = subprocess.run(
        [shellcheck, "-x", "remote/wheelhouse.sh"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_real_packages_from_the_real_registry(
    box: Box, packer: Packer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small ones, in the versions of this checkout's lock: the files have to be those that it names."""
    for name in ("PIP_INDEX_URL", "PIP_CONFIG_FILE"):
        monkeypatch.delenv(name)
    own = tomllib.loads((ROOT / "uv.lock").read_text())
    names = ("rich", "pydantic", "psutil", "jinja2")
    pins = [f"{entry['name']}=={entry['version']}" for entry in own["package"] if entry["name"] in names]
    (packer.project / "pyproject.toml").write_text(f"""
[project]
name = "small"
version = "1"
requires-python = ">=3.11,<3.13"
dependencies = {pins}

[tool.uv]
package = false
environments = ["sys_platform == 'linux' and platform_machine == 'x86_64'"]
exclude-newer = "{own["options"]["exclude-newer"]}"
""")
    shutil.copy(ROOT / "remote/uv-requirements.txt", packer.project / "remote/uv-requirements.txt")
    (packer.project / "uv.lock").unlink()
    if (done := lock(packer.project)).returncode != 0:
        pytest.skip(f"the registry cannot be reached: {done.stderr[-200:]}")
    manifest = packer.pack(tmp_path / "house", part_bytes=2**20, with_uv=True)
    known = {wheel["hash"] for entry in own["package"] for wheel in entry.get("wheels", [])}
    assert len(manifest.wheels) > len(names)
    assert [wheel.file for wheel in manifest.wheels if f"sha256:{wheel.sha256}" not in known] == []

    for file in ("pyproject.toml", "uv.lock", "remote/uv-requirements.txt"):
        shutil.copy(packer.project / file, box.root / file)
    done = box.install(tmp_path / "house")
    assert done.returncode == 0, done.stderr
    python = box.root / ".venv/bin/python"
    subprocess.run([python, "-I", "-c", "import rich, pydantic, psutil, jinja2"], check=True)
    assert leftovers(box) == {".uv", ".venv"}
