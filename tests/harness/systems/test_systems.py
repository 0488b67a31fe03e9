import os
import sys
from pathlib import Path

import pytest

from harness.errors import BadInput
from harness.schema import Environment, Source
from harness.systems import SYSTEMS, choose
from harness.systems.base import Target
from harness.systems.environment import Interpreter, find_environments, parse_environment
from harness.systems.process import launch

TARGET = Target("m", Path("/models/m"), "cuda", "bfloat16", 1024)


@pytest.mark.parametrize("name", ["engine", "vllm", "sglang"])
def test_every_system_serves_the_same_target(name):
    argv = SYSTEMS[name].command(TARGET, 4321)
    for wanted in ("/models/m", "m", "127.0.0.1", "4321", "bfloat16", "1024"):
        assert wanted in argv
    assert argv[0] == "-m"


def test_peers_send_no_usage_statistics():
    for name in ("vllm", "sglang"):
        assert SYSTEMS[name].variables["DO_NOT_TRACK"] == "1"
        assert SYSTEMS[name].variables["HF_HUB_OFFLINE"] == "1"


def test_versions_come_from_the_package_or_the_commit():
    environment = Environment(
        python="p", import_paths=[], given=False, python_version="3.12.1", packages={"vllm": "0.26.0"}
    )
    source = Source(
        origin="git",
        git_commit="abcdef0123456789",
        dirty=True,
        diff_sha256=None,
        changed_since=[],
        lock_sha256="x",
    )
    assert SYSTEMS["vllm"].version(environment, source) == "0.26.0"
    assert SYSTEMS["sglang"].version(environment, source) == "unknown"
    assert SYSTEMS["engine"].version(environment, source) == "abcdef012345+dirty"


def test_a_system_is_chosen_by_name_and_configuration():
    assert choose("engine") == (SYSTEMS["engine"], "default")
    assert choose("engine:default") == (SYSTEMS["engine"], "default")
    with pytest.raises(BadInput, match="unknown system 'trtllm'; there are: engine, null, sglang, vllm"):
        choose("trtllm")
    with pytest.raises(BadInput, match="system engine has no configuration 'fast'; there are: default"):
        choose("engine:fast")


def test_a_given_environment_names_interpreter_and_import_paths(tmp_path):
    found = parse_environment(f"vllm={sys.executable}:{tmp_path}:/")
    assert found == Interpreter("vllm", Path(sys.executable), (tmp_path, Path("/")), given=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vllm", "must be NAME=PYTHON"),
        ("torch=/usr/bin/python3", "NAME one of project, vllm, sglang"),
        ("vllm=/no/such/python", "/no/such/python is not an executable file"),
        ("vllm=/", "/ is not an executable file"),
        (f"vllm={sys.executable}:/no/such/folder", "import path /no/such/folder is not a folder"),
    ],
)
def test_a_bad_environment_is_named(text, message):
    with pytest.raises(BadInput, match=message):
        parse_environment(text)


def test_environments_of_the_checkout_are_found_and_given_ones_come_first(tmp_path):
    for name in (".venv-vllm", ".venv-sglang"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin" / "python").symlink_to(sys.executable)
    found = find_environments([f"sglang={sys.executable}"], tmp_path)
    assert found["project"].python == Path(sys.executable)
    assert found["vllm"] == Interpreter("vllm", tmp_path / ".venv-vllm/bin/python")
    assert found["sglang"].given
    assert "vllm" not in find_environments([], tmp_path / "elsewhere")


def test_import_paths_reach_only_the_processes_of_their_system(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", "/of/the/harness")
    own = Interpreter("project", Path(sys.executable)).process_environment()
    peer = Interpreter("vllm", tmp_path / "bin/python").process_environment()
    given = Interpreter(
        "vllm", tmp_path / "bin/python", (tmp_path / "a", tmp_path / "b"), True
    ).process_environment()
    assert own["PYTHONPATH"] == "/of/the/harness"
    assert "PYTHONPATH" not in peer
    assert given["PYTHONPATH"] == f"{tmp_path}/a:{tmp_path}/b"
    assert given["PATH"].split(os.pathsep)[0] == str(tmp_path / "bin")


def test_only_code_of_the_checkout_starts_in_it(tmp_path):
    interpreter = Interpreter("project", Path(sys.executable))
    for name, cwd in (("engine", tmp_path), ("vllm", None)):
        system = SYSTEMS[name]
        made = launch(system, system.configurations["default"], TARGET, interpreter, tmp_path)
        assert made.cwd == cwd
        assert made.argv[0] == sys.executable
        assert str(made.port) in made.argv
