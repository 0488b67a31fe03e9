"""remote/setup_gpu_box.sh on stand-ins: what it asks of a machine, and the environments it makes."""

from __future__ import annotations

from subprocess import CompletedProcess

import pytest

from tests.remote.checkout import Checkout

H200 = "NVIDIA H200, 143771, 580.159.04"


@pytest.fixture
def box(checkout: Checkout) -> Checkout:
    """A machine that has all it needs."""
    checkout.add_python()
    give_gpu(checkout, H200)
    give_disk(checkout, 500)
    give_memory(checkout, 64)
    return checkout


def give_gpu(box: Checkout, *lines: str) -> None:
    listed = "\n".join(lines)
    box.write_program(box.path / "nvidia-smi", f"#!/bin/bash\ncat <<'END'\n{listed}\nEND\n")


def give_disk(box: Checkout, gigabytes: int) -> None:
    (box.path / "df").unlink()
    box.write_program(
        box.path / "df", f"#!/bin/bash\necho head; echo disk 0 0 {gigabytes * 1_000_000} 0% /\n"
    )


def give_memory(box: Checkout, gigabytes: int) -> None:
    box.write_program(
        box.path / "getconf",
        f"#!/bin/bash\n[[ $1 == PAGE_SIZE ]] && echo 1000000 || echo {gigabytes * 1000}\n",
    )


def set_up(box: Checkout, *arguments: str) -> CompletedProcess[str]:
    return box.call("remote/setup_gpu_box.sh", *arguments)


def test_help_and_unknown_systems(checkout: Checkout) -> None:
    assert "usage: bash remote/setup_gpu_box.sh" in set_up(checkout, "--help").stdout
    done = set_up(checkout, "tgi")
    assert done.returncode == 2
    assert "unknown system or flag 'tgi'; there are: project vllm sglang" in done.stderr


def test_a_dry_run_checks_and_changes_nothing(box: Checkout) -> None:
    done = set_up(box, "--dry-run", "vllm")
    assert done.returncode == 0
    assert "ok    GPU: NVIDIA H200, 143771 MiB, driver 580.159.04" in done.stdout
    assert "would install uv 0.13.9" in done.stdout
    assert "sync --locked --no-dev --extra vllm" in done.stdout
    assert box.calls == []
    assert not (box.root / ".setup.lock").exists()


def test_it_makes_one_environment_a_system_and_can_be_called_again(box: Checkout) -> None:
    assert set_up(box).returncode == 0
    first = box.calls
    assert [line for line in first if line.startswith("uv")] == [
        f"uv --directory {box.root} sync --locked{extra} with {box.variables['REAL_PYTHON']}"
        for extra in ("", " --no-dev --extra vllm", " --no-dev --extra sglang")
    ]
    for name in (".venv", ".venv-vllm", ".venv-sglang"):
        assert (box.root / name / "bin/python").exists()
    assert set_up(box).returncode == 0
    assert not [line for line in box.calls[len(first) :] if not line.startswith("{")]


def test_an_environment_without_a_gpu_fails(box: Checkout) -> None:
    box.on_call("echo torch finds no CUDA device >&2; exit 1")
    done = set_up(box, "vllm")
    assert done.returncode == 1
    assert "cannot use the GPU" in done.stderr


def test_everything_that_is_wrong_is_named_at_once(box: Checkout) -> None:
    give_gpu(box, H200, "NVIDIA L4, 23034, 535.183.01")
    give_disk(box, 5)
    give_memory(box, 8)
    (box.path / "python3.11").unlink()
    done = set_up(box, "vllm", "sglang")
    assert done.returncode == 1
    assert "FAIL  GPU: NVIDIA L4 has driver 535.183.01, needed is 580 or newer" in done.stdout
    assert f"FAIL  disk: 5 GB free on the file system of {box.root}, needed are " in done.stdout
    assert "FAIL  memory: 8 GB, needed are 16 GB" in done.stdout
    assert "FAIL  Python: no Python 3.11 or 3.12 found" in done.stdout
    assert box.calls == []


@pytest.mark.parametrize(
    "program", [None, "#!/bin/bash\necho NVML: driver/library version mismatch; exit 9\n"]
)
def test_without_a_working_driver_it_says_so(box: Checkout, program: str | None) -> None:
    (box.path / "nvidia-smi").unlink()
    if program:
        box.write_program(box.path / "nvidia-smi", program)
    done = set_up(box, "--dry-run")
    assert done.returncode == 1
    said = "NVML: driver/library version mismatch" if program else "there is no nvidia-smi on PATH"
    assert said in done.stdout
