"""remote.wheelhouse packs what uv.lock says, for the Python asked, once, and in whole parts."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from remote.errors import RemoteError
from remote.wheelhouse.__main__ import main
from remote.wheelhouse.download import BATCH_BYTES, BATCH_WHEELS, batches
from remote.wheelhouse.locked import Wheel, choose_wheel, locked_wheels, needed_glibc, target_tags
from remote.wheelhouse.parts import PartWriter
from tests.remote.wheelhouse.world import MINOR, OTHER_MINOR, UV, Packer, Registry, make_wheel, sha256


def files_of(packer: Packer, extra: str, python: str) -> list[str]:
    return [wheel.file for wheel in locked_wheels(packer.project, UV, extra, python)]


def test_markers_and_tags_are_those_of_the_python_asked(packer: Packer) -> None:
    assert files_of(packer, "none", "3.11") == [
        "alpha-1.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        "beta-1.0-py3-none-any.whl",
        "epsilon-1.0-py3-none-any.whl",
    ]
    assert files_of(packer, "none", "3.12") == [
        "alpha-1.0-cp312-cp312-manylinux_2_28_x86_64.whl",
        "epsilon-1.0-py3-none-any.whl",
    ]


def test_extras_that_conflict_get_their_own_versions_and_no_development_tools(packer: Packer) -> None:
    names = {extra: files_of(packer, extra, "3.12")[1:] for extra in ("vllm", "sglang", "vast")}
    assert names == {
        "vllm": ["gamma-2.0-py3-none-any.whl"],
        "sglang": ["gamma-1.0-py3-none-any.whl"],
        "vast": ["delta_d-1.0-py3-none-any.whl"],
    }


def test_a_lock_that_is_stale_is_refused(packer: Packer) -> None:
    file = packer.project / "pyproject.toml"
    file.write_text(file.read_text().replace("gamma==2.0", "gamma==1.0"))
    with pytest.raises(RemoteError, match=r"cannot export the environment none of .*uv\.lock"):
        locked_wheels(packer.project, UV, "none", "3.12")


def entry(*files: str) -> dict[str, object]:
    wheels = [{"url": f"https://example.org/{f}", "hashes": {"sha256": "0" * 64}, "size": 1} for f in files]
    return {"name": "p", "version": "1", "wheels": wheels}


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        (("p-1-py3-none-any.whl", "p-1-cp312-cp312-manylinux_2_28_x86_64.whl"), 1),
        (("p-1-cp38-abi3-manylinux_2_28_x86_64.whl", "p-1-py3-none-any.whl"), 0),
        (("p-1-cp311-cp311-manylinux2014_x86_64.whl", "p-1-py2.py3-none-manylinux1_x86_64.whl"), 1),
        (("p-1-1-py3-none-any.whl", "p-1-2-py3-none-any.whl"), 1),
    ],
)
def test_of_several_wheels_the_one_an_installer_would_choose(files: tuple[str, ...], chosen: int) -> None:
    assert choose_wheel(entry(*files), target_tags("3.12")).file == files[chosen]


@pytest.mark.parametrize(
    "file",
    [
        "p-1-cp312-cp312-manylinux_2_36_x86_64.whl",
        "p-1-cp312-cp312-musllinux_1_2_x86_64.whl",
        "p-1-cp312-cp312-manylinux_2_28_aarch64.whl",
        "p-1-cp313-abi3-manylinux_2_28_x86_64.whl",
        "p-1-cp312-cp312t-manylinux_2_28_x86_64.whl",
    ],
)
def test_a_package_without_a_wheel_for_the_box_is_named(file: str) -> None:
    with pytest.raises(RemoteError, match=r"no wheel of p 1 .* glibc 2\.35"):
        choose_wheel(entry(file), target_tags("3.12"))


def test_needed_glibc_is_the_oldest_that_every_wheel_runs_on() -> None:
    assert needed_glibc(["p-1-py3-none-any.whl"]) == "2.5"
    both = [
        "p-1-cp312-cp312-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
        "q-1-cp39-abi3-manylinux2014_x86_64.whl",
    ]
    assert needed_glibc(both) == "2.27"


def test_batches_keep_order_and_bounds() -> None:
    sizes = [1, BATCH_BYTES + 5, 1, 1, BATCH_BYTES - 1, 2] + [1] * (2 * BATCH_WHEELS)
    wheels = [Wheel(f"p{i}", "1", f"p{i}", "", size) for i, size in enumerate(sizes)]
    groups = list(batches(wheels))
    assert [wheel for group in groups for wheel in group] == wheels
    assert all(len(group) <= BATCH_WHEELS for group in groups)
    assert all(len(group) == 1 or sum(wheel.size for wheel in group) <= BATCH_BYTES for group in groups)
    assert [len(group) for group in groups[:2]] == [1, 1]


@pytest.mark.parametrize("pieces", [[10], [3, 3, 4], [4, 4, 4], [1] * 9, [25], []])
def test_parts_are_full_except_the_last(tmp_path: Path, pieces: list[int]) -> None:
    data = bytes(range(sum(pieces)))
    writer, at = PartWriter(tmp_path, 4), 0
    for size in pieces:
        assert writer.write(data[at : at + size]) == size
        at += size
    writer.close()
    parts = [tmp_path / name for name in writer.sums]
    assert parts == sorted(tmp_path.iterdir())
    assert b"".join(part.read_bytes() for part in parts) == data
    assert all(part.stat().st_size == 4 for part in parts[:-1])
    assert writer.sums == {part.name: sha256(part) for part in parts}


def test_a_wheelhouse_holds_the_wheels_uv_and_every_sum(
    packer: Packer, registry: Registry, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    manifest = packer.pack(out, "vllm", with_uv=True)
    stored = json.loads((out / "MANIFEST.json").read_text())
    assert stored["extra"] == "vllm" and stored["python"] == MINOR
    assert stored["lock_sha256"] == sha256(packer.project / "uv.lock")
    parts = sorted(out.glob("part-*"))
    assert len(parts) > 2
    assert stored["parts"] == {part.name: sha256(part) for part in parts}
    assert {part.stat().st_size for part in parts[:-1]} == {3000}
    with tarfile.open(fileobj=io.BytesIO(b"".join(part.read_bytes() for part in parts))) as tar:
        held = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    assert held.keys() == {f"wheels/{wheel.file}" for wheel in manifest.wheels} | {
        "uv-0.13.9-py3-none-any.whl"
    }
    for name, content in held.items():
        assert content == (registry.folder / Path(name).name).read_bytes()
    for wheel in manifest.wheels:
        assert wheel.sha256 == sha256(registry.folder / wheel.file)


def test_the_same_environment_gives_the_same_parts(packer: Packer, tmp_path: Path) -> None:
    assert packer.pack(tmp_path / "a") == packer.pack(tmp_path / "b")


def test_what_is_loaded_is_not_loaded_again(packer: Packer, registry: Registry, tmp_path: Path) -> None:
    packer.pack(tmp_path / "a", "vllm", with_uv=True)
    registry.loaded.clear()
    packer.pack(tmp_path / "b", "vllm", with_uv=True)
    assert registry.loaded == []
    damaged = packer.cache / "gamma-2.0-py3-none-any.whl"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    packer.pack(tmp_path / "c", "vllm", with_uv=True)
    assert registry.loaded == [damaged.name]
    assert f"{damaged} is damaged: loading it again" in packer.said


def test_a_folder_that_holds_it_is_left_and_one_that_does_not_is_made_anew(
    packer: Packer, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    manifest = packer.pack(out)
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    assert packer.pack(out) == manifest
    assert packer.said[-1] == f"{out} already holds it"
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == before

    (out / "part-0001").write_bytes(b"")
    assert packer.pack(out) == manifest
    assert (out / "part-0001").stat().st_size > 0

    wider = packer.pack(out, part_bytes=1_000_000)
    assert [path.name for path in sorted(out.iterdir())] == ["MANIFEST.json", "part-0000"]
    assert wider.parts.keys() == {"part-0000"}


def test_killed_while_parts_are_written_it_never_looks_whole(
    packer: Packer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    packer.pack(out)
    monkeypatch.setattr(
        "remote.wheelhouse.pack.write_parts", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        packer.pack(out, "vllm")
    assert list(out.iterdir()) == []


def test_another_file_than_that_of_the_lock_is_refused(
    packer: Packer, registry: Registry, tmp_path: Path
) -> None:
    changed = registry.folder / "epsilon-1.0-py3-none-any.whl"
    right = changed.read_bytes()
    try:
        make_wheel(registry.folder, "epsilon", "1.0", content={"epsilon.py": "evil = True\n"})
        with pytest.raises(RemoteError, match=r"pip could not load \d wheels"):
            packer.pack(tmp_path / "out")
    finally:
        changed.write_bytes(right)
    assert not (tmp_path / "out" / "MANIFEST.json").exists()
    assert not (packer.cache / changed.name).exists()


def test_a_disk_that_is_too_small_for_the_parts(
    packer: Packer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = type("Usage", (), {"free": 10})
    monkeypatch.setattr("remote.wheelhouse.pack.shutil.disk_usage", lambda _: full)
    with pytest.raises(RemoteError, match=r"0\.0 GB free, the parts need 0\.0 GB"):
        packer.pack(tmp_path / "out")


def test_a_pin_of_uv_that_is_not_one_line_is_refused(packer: Packer, tmp_path: Path) -> None:
    (packer.project / "remote/uv-requirements.txt").write_text("uv==0.13.9\n")
    with pytest.raises(RemoteError, match="has to be one line"):
        packer.pack(tmp_path / "out", with_uv=True)


def test_a_cpython_that_cannot_be_loaded(packer: Packer, tmp_path: Path) -> None:
    packer.uv = tmp_path / "uv"
    packer.uv.write_text(
        f'#!/bin/sh\n[ "$1" = python ] && {{ echo no route to host >&2; exit 1; }}\nexec "{UV}" "$@"\n'
    )
    packer.uv.chmod(0o755)
    with pytest.raises(RemoteError, match=f"cannot load CPython {MINOR}: no route to host"):
        packer.pack(tmp_path / "out", with_python=True)


def test_a_damaged_manifest_is_named(packer: Packer, tmp_path: Path) -> None:
    (tmp_path / "MANIFEST.json").write_text("{}")
    with pytest.raises(RemoteError, match=r"MANIFEST\.json is not a manifest of format 1"):
        packer.pack(tmp_path)


@pytest.mark.usefixtures("project")
def test_the_command_line_on_the_lock_of_this_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dry run lists what would be loaded, and loads nothing."""
    monkeypatch.setenv("LLM_LADDER_CACHE", str(tmp_path / "cache"))
    listed = {}
    for python in (MINOR, OTHER_MINOR):
        assert (
            main(
                ["pack", "--extra", "sglang", "--python", python, "--out", str(tmp_path / "out"), "--dry-run"]
            )
            == 0
        )
        listed[python] = capsys.readouterr().out
    assert "torch-2.11.0-cp312" in listed["3.12"] and "torch-2.11.0-cp311" in listed["3.11"]
    assert "transformers-5.12.1-py3-none-any.whl" in listed["3.12"]
    assert "pytest-" not in listed["3.12"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--part-mib", "0"], "0 MiB is too small"), (["--python", "3.13"], "invalid choice: '3.13'")],
)
def test_wrong_arguments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["pack", "--extra", "none", "--out", str(tmp_path), *arguments])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
