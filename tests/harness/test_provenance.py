import os
import sys
from pathlib import Path

import pytest

from harness.errors import BadInput
from harness.provenance import anonymous, box_name, cpu_model, read_environment, read_hardware, usable_cores
from harness.schema import GpuInfo, Hardware
from harness.systems.environment import Interpreter


def gpu(name="NVIDIA H200"):
    return GpuInfo(
        index=0, name=name, uuid="u", driver="580", memory_bytes=1, max_sm_clock_mhz=None,
        max_memory_clock_mhz=None, power_limit_mw=None, ecc=None,
    )  # fmt: skip


def hardware(gpus):
    return Hardware(cpu_model="x", cpu_cores=16, memory_bytes=1, kernel="6", gpus=gpus)


def test_boxes_are_named_by_their_hardware():
    assert box_name(hardware([])) == "cpu-16c"
    assert box_name(hardware([gpu()])) == "nvidia-h200-16c"
    assert box_name(hardware([gpu(), gpu()])) == "2x-nvidia-h200-16c"


def test_the_cpu_is_named_by_the_kernel_or_its_architecture(tmp_path):
    (tmp_path / "a").write_text("processor\t: 0\nmodel name\t: AMD EPYC 9\nmodel name\t: other\n")
    (tmp_path / "b").write_text("processor\t: 0\n")
    assert cpu_model(tmp_path / "a") == "AMD EPYC 9"
    assert cpu_model(tmp_path / "b") == os.uname().machine


def test_a_container_quota_limits_the_cores(tmp_path):
    everything = len(os.sched_getaffinity(0))
    (tmp_path / "max").write_text("max 100000\n")
    (tmp_path / "half").write_text("50000 100000\n")
    assert usable_cores(tmp_path / "max") == everything
    assert usable_cores(tmp_path / "half") == 1
    assert usable_cores(tmp_path / "none") == everything


def test_this_machine_can_be_described():
    found = read_hardware([])
    assert found.cpu_cores >= 1
    assert found.memory_bytes > 2**28
    assert found.kernel


def test_an_interpreter_tells_its_own_versions(tmp_path):
    package = tmp_path / "packages" / "vllm-9.9.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 9.9\n")
    used = Interpreter("vllm", Path(sys.executable), (tmp_path / "packages",), given=True)
    found = read_environment(used, tmp_path)
    assert found.packages["vllm"] == "9.9"
    assert found.packages["pydantic"]
    assert found.import_paths == ["{checkout}/packages"]
    assert found.given
    assert found.python_version.startswith("3.")


def test_an_interpreter_that_cannot_run_is_named(tmp_path):
    (tmp_path / "python").write_text("#!/bin/sh\necho broken >&2; exit 3\n")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(BadInput, match="of vllm failed: broken"):
        read_environment(Interpreter("vllm", tmp_path / "python"), tmp_path)
    with pytest.raises(BadInput, match="/no/python of vllm: No such file"):
        read_environment(Interpreter("vllm", Path("/no/python")), tmp_path)


def test_folders_of_this_machine_do_not_reach_the_results(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    root, model = Path("/work/code"), Path("/home/me/.cache/m")
    assert anonymous("/work/code/.venv/bin/python", root, model) == "{checkout}/.venv/bin/python"
    assert anonymous("--model=/home/me/.cache/m", root, model) == "--model={model}"
    assert anonymous("/home/me/x", root, model) == "~/x"
