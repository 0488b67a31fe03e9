from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.remote.wheelhouse.world import UV, Box, Packer, Registry, copy_project, fill, make_project, serve


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    folder = tmp_path_factory.mktemp("registry")
    fill(folder)
    with serve(Registry(folder)) as registry:
        yield registry


@pytest.fixture(scope="session")
def project(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not UV.exists():
        pytest.skip(f"{UV} is missing: set-up did not make this environment")
    return make_project(tmp_path_factory.mktemp("project") / "tiny", registry)


@pytest.fixture
def packer(project: Path, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Packer:
    """On a machine whose pip knows the tiny registry and nothing else."""
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", registry.url)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return Packer(copy_project(project, tmp_path / "project"), tmp_path / "cache")


@pytest.fixture
def box(project: Path, tmp_path: Path) -> Box:
    return Box.make(tmp_path, project)
