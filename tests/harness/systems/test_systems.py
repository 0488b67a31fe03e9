import os
import sys
from pathlib import Path

import pytest

from engine.config import PRESETS
from harness.errors import BadInput
from harness.schema import Environment, Source
from harness.systems import SYSTEMS, choose
from harness.systems.base import ServerError, Target
from harness.systems.environment import Interpreter, find_environments, parse_environment
from harness.systems.memory import is_back
from harness.systems.process import launch

TARGET = Target("m", Path("/models/m"), "cuda", "bfloat16", 1024)


@pytest.mark.parametrize("name", ["engine", "vllm", "sglang"])
def test_every_system_serves_the_same_target(name):
    argv = SYSTEMS[name].command(TARGET, 4321)
    for wanted in ("/models/m", "m", "127.0.0.1", "4321", "bfloat16", "1024"):
        assert wanted in argv
    assert argv[0] == "-m"


def test_peers_send_no_usage_statistics():
    for name in ("vllm", "sglang", "transformers", "tensorrt-llm"):
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
    assert choose("vllm:tune-rust") == (SYSTEMS["vllm"], "tune-rust")
    with pytest.raises(
        BadInput, match=r"unknown system 'trtllm'; there are: engine, null, .*vllm, or http://"
    ):
        choose("trtllm")
    with pytest.raises(
        BadInput, match="system engine has no configuration 'fast'; there are: default, eager"
    ):
        choose("engine:fast")


def test_the_engine_has_a_configuration_for_each_of_its_presets():
    configurations = SYSTEMS["engine"].configurations
    assert {name: configurations[name].flags for name in PRESETS} == {
        name: ("--preset", name) for name in PRESETS
    }


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


@pytest.mark.parametrize(
    ("system", "configuration"),
    [(system, name) for system in SYSTEMS.values() for name in system.configurations],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_every_flag_and_variable_of_a_configuration_has_its_reason(system, configuration):
    made = system.configurations[configuration]
    names = [flag for flag in made.flags if flag.startswith("--")]
    assert len(set(names)) == len(names)
    assert set(made.reasons) == {*names, *made.variables}
    assert all(made.reasons.values()) and made.reason


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_a_peer_has_its_three_named_configurations_and_distinct_candidates(name):
    configurations = SYSTEMS[name].configurations
    assert {"default", "same_features", "tuned"} <= set(configurations)
    assert configurations["default"].flags == ()
    candidates = [config for key, config in configurations.items() if key.startswith("tune-")]
    asked = [(config.flags, tuple(config.variables), config.entry) for config in candidates]
    assert len(candidates) >= 6
    assert len(set(asked)) == len(asked)


def test_a_configuration_without_the_prefix_cache_says_so():
    for system in SYSTEMS.values():
        for config in system.configurations.values():
            off = {"--no-enable-prefix-caching", "--disable-radix-cache", "--no-prefix-cache"} & set(
                config.flags
            )
            assert not off or config.prefix_cache == "off"


def made_launch(system, configuration, root, memory=None):
    interpreter = Interpreter("project", Path(sys.executable))
    return launch(system, system.configurations[configuration], TARGET, interpreter, root, memory)


def test_a_configuration_may_bring_its_own_entry_and_environment(tmp_path):
    default = made_launch(SYSTEMS["vllm"], "default", tmp_path)
    rust = made_launch(SYSTEMS["vllm"], "tune-rust", tmp_path)
    assert default.argv[1:4] == ["-m", "vllm.entrypoints.openai.api_server", "--model"]
    assert rust.argv[1:6] == ["-m", "vllm.entrypoints.cli.main", "serve", "--model", "/models/m"]
    assert rust.additions["VLLM_USE_RUST_FRONTEND"] == "1"
    assert "VLLM_USE_RUST_FRONTEND" not in default.additions


def test_without_a_share_a_server_takes_its_own_default(tmp_path):
    alone = made_launch(SYSTEMS["engine"], "no-prefix-cache", tmp_path)
    shared = made_launch(SYSTEMS["engine"], "no-prefix-cache", tmp_path, (0.3, 0.7))
    assert "--gpu-memory-share" not in alone.argv
    assert shared.argv[-3:] == ["--gpu-memory-share", "0.6000", "--no-prefix-cache"]


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("engine", ["--gpu-memory-share", "0.6000"]),  # of all there is, others' 0.3 included
        ("vllm", ["--gpu-memory-utilization", "0.3000"]),  # of all there is, its own alone
        ("sglang", ["--mem-fraction-static", "0.3970"]),  # 0.27 / 0.68 of what is free
        ("tensorrt-llm", ["--free_gpu_memory_fraction", "0.4411"]),  # 0.3 / 0.68
        ("transformers", []),
        ("null", []),
    ],
)
def test_a_memory_share_in_each_systems_own_terms(name, flags):
    assert SYSTEMS[name].memory_flags(0.3, 0.7) == flags


@pytest.mark.parametrize("name", ["engine", "vllm", "sglang", "tensorrt-llm"])
def test_a_memory_share_that_is_not_there_is_refused(name):
    with pytest.raises(ServerError, match=r"a share of 0\.3 .* where only 0\.310 is free"):
        SYSTEMS[name].memory_flags(0.3, 0.31)
    with pytest.raises(ServerError, match=r"a share of 1\.2 .* must lie in \(0, 1\]"):
        SYSTEMS[name].memory_flags(1.2, 1.0)


def test_a_share_too_small_for_sglangs_steps_is_refused():
    with pytest.raises(ServerError, match=r"a share of 0\.02 .* leaves no KV cache"):
        SYSTEMS["sglang"].memory_flags(0.02, 1.0)


@pytest.mark.parametrize("free_share", [1.0, 0.72, 0.41])
@pytest.mark.parametrize("share", [0.1, 0.29, 0.3333333])
def test_shares_become_the_bytes_meant_and_never_more(share, free_share):
    """By the formula of each server, on a GPU of 140 GiB where others hold what is not free."""
    total = 140 * 2**30
    wanted, others, free = share * total, (1 - free_share) * total, free_share * total

    def value(name):
        return float(SYSTEMS[name].memory_flags(share, free_share)[1])

    engine = value("engine") * total - others
    vllm = value("vllm") * total
    sglang = value("sglang") * (free - 0.02 * total) + 0.03 * total
    for taken in (engine, vllm, sglang):
        assert wanted - 2e-4 * total <= taken <= wanted + 1


def test_memory_is_back_when_no_more_is_used_than_before():
    assert is_back(1 << 30, 1 << 30)
    assert is_back(1 << 30, (1 << 30) + (200 << 20))
    assert not is_back(1 << 30, (1 << 30) + (500 << 20))
    assert is_back(2 << 30, 1 << 30)


def test_a_model_is_called_what_each_system_calls_it():
    names = {name: system.served_name(TARGET) for name, system in SYSTEMS.items()}
    assert names.pop("transformers") == "/models/m"
    assert set(names.values()) == {"m"}
    elsewhere = Target("m", Path("/models/m-0a1b"), "cuda", "bfloat16", 1024)
    assert SYSTEMS["tensorrt-llm"].served_name(elsewhere) == "m-0a1b"


def test_only_code_of_the_checkout_starts_in_it(tmp_path):
    interpreter = Interpreter("project", Path(sys.executable))
    for name, cwd in (("engine", tmp_path), ("vllm", None)):
        system = SYSTEMS[name]
        made = launch(system, system.configurations["default"], TARGET, interpreter, tmp_path)
        assert made.cwd == cwd
        assert made.argv[0] == sys.executable
        assert str(made.port) in made.argv
