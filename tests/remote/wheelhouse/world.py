"""A registry on loopback with tiny wheels, a project locked from it, and a box that cannot reach it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from remote.wheelhouse.manifest import Manifest
from remote.wheelhouse.pack import pack
from tests.remote.checkout import ROOT

UV = ROOT / ".uv" / "bin" / "uv"
MINOR = f"3.{sys.version_info.minor}"
OTHER_MINOR = "3.12" if MINOR == "3.11" else "3.11"
BOX_TOOLS = (
    "awk", "bash", "cat", "cmp", "cp", "df", "dirname", "env", "flock", "getconf", "grep", "head", "mkdir",
    "mv", "realpath", "rm", "sed", "sha256sum", "sh", "sleep", "sort", "stat", "tail", "tar", "uname", "wc",
)  # fmt: skip
PROJECT = """
[project]
name = "tiny"
version = "1"
requires-python = ">=3.11,<3.13"
dependencies = ["alpha==1.0", "beta==1.0; python_version < '3.12'"]

[project.optional-dependencies]
vllm = ["gamma==2.0"]
sglang = ["gamma==1.0"]
vast = ["delta_d==1.0"]

[dependency-groups]
dev = ["epsilon==1.0"]

[tool.uv]
package = false
environments = ["sys_platform == 'linux' and platform_machine == 'x86_64'"]
conflicts = [[{ extra = "vllm" }, { extra = "sglang" }, { extra = "vast" }]]

[[tool.uv.index]]
url = "URL"
default = true
"""


def make_wheel(
    folder: Path, name: str, version: str, tags: str = "py3-none-any", content: dict[str, str] | None = None
) -> Path:
    """A wheel with one module that says its version and its tags; `content` adds files or replaces them."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"version, tags = {version!r}, {tags!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tags}\n",
    } | (content or {})
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    wheel = folder / f"{name}-{version}-{tags}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return wheel


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass
class Registry:
    """A package index (PEP 503); `loaded` notes the files that were asked for."""

    folder: Path
    url: str = ""
    loaded: list[str] = field(default_factory=list)

    def answer(self, path: str) -> bytes | None:
        kind, _, name = path.strip("/").partition("/")
        if kind == "files" and (self.folder / name).exists():
            self.loaded.append(name)
            return (self.folder / name).read_bytes()
        files = sorted(self.folder.glob(f"{name.replace('-', '_')}-*.whl"))
        if kind != "simple" or not files:
            return None
        return "".join(
            f'<a href="/files/{file.name}#sha256={sha256(file)}">{file.name}</a>\n' for file in files
        ).encode()


@contextmanager
def serve(registry: Registry) -> Iterator[Registry]:
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_error(405)

        def do_GET(self) -> None:
            body = registry.answer(self.path)
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Type", "text/html" if "/simple/" in self.path else "application/zip")
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    registry.url = f"http://127.0.0.1:{server.server_port}/simple"
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def fill(folder: Path) -> None:
    for tags in (
        "cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64",
        "cp312-cp312-manylinux_2_28_x86_64",
    ):
        make_wheel(folder, "alpha", "1.0", tags)
    for name, version in (
        ("beta", "1.0"),
        ("gamma", "1.0"),
        ("gamma", "2.0"),
        ("delta_d", "1.0"),
        ("epsilon", "1.0"),
    ):
        make_wheel(folder, name, version)
    program = f'#!/bin/sh\nexec "{UV}" "$@"\n'
    make_wheel(folder, "uv", "0.13.9", content={"uv-0.13.9.data/scripts/uv": program})


def make_project(folder: Path, registry: Registry) -> Path:
    """What of a checkout wheelhouses need, with a lock of the registry."""
    (folder / "remote" / "wheelhouse").mkdir(parents=True)
    shutil.copytree(ROOT / "remote" / "lib", folder / "remote" / "lib")
    for file in ("wheelhouse.sh", "wheelhouse/box.py"):
        shutil.copy(ROOT / "remote" / file, folder / "remote" / file)
    (uv_wheel,) = registry.folder.glob("uv-*.whl")
    (folder / "remote" / "uv-requirements.txt").write_text(f"uv==0.13.9 --hash=sha256:{sha256(uv_wheel)}\n")
    (folder / "pyproject.toml").write_text(PROJECT.replace("URL", registry.url))
    lock(folder).check_returncode()
    return folder


def lock(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [UV, "--directory", root, "lock", "--quiet"],
        env=os.environ | {"UV_PYTHON": sys.executable, "UV_PYTHON_DOWNLOADS": "never"},
        capture_output=True,
        text=True,
    )


def copy_project(project: Path, target: Path) -> Path:
    return Path(shutil.copytree(project, target))


@dataclass
class Packer:
    """Packs `project` with a cache of its own; `said` are its lines."""

    project: Path
    cache: Path
    uv: Path = UV
    said: list[str] = field(default_factory=list)

    def pack(
        self,
        out: Path,
        extra: str = "none",
        python: str = MINOR,
        part_bytes: int = 3000,
        *,
        with_uv: bool = False,
        with_python: bool = False,
    ) -> Manifest:
        return pack(
            self.project,
            self.uv,
            extra,
            python,
            out,
            part_bytes,
            self.cache,
            self.said.append,
            with_uv=with_uv,
            with_python=with_python,
        )


@dataclass
class Box:
    """A machine with a checkout, a Python, and no way to the registry."""

    root: Path
    path: Path
    variables: dict[str, str] = field(default_factory=dict)

    @classmethod
    def make(cls, folder: Path, project: Path) -> Box:
        box = cls(copy_project(project, folder / "a box"), folder / "bin")
        box.path.mkdir()
        for tool in BOX_TOOLS:
            (box.path / tool).symlink_to(Path(str(shutil.which(tool))))
        box.add_python()
        # A proxy that refuses, so that a call to any registry would be seen.
        nowhere = "http://127.0.0.1:9"
        box.variables = {"PATH": str(box.path), "HOME": str(folder / "home"), "LC_ALL": "C"}
        box.variables |= {"http_proxy": nowhere, "https_proxy": nowhere}
        return box

    def add_python(self) -> None:
        (self.path / f"python{MINOR}").symlink_to(Path(sys.executable).resolve())

    def write_program(self, file: Path, text: str) -> None:
        file.unlink(missing_ok=True)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)

    def add_uv(self, before: str = "") -> None:
        """.uv as set-up makes it; `before` runs in front of each call."""
        self.write_program(self.root / ".uv/bin/uv", f'#!/bin/bash\n{before}\nexec "{UV}" "$@"\n')

    def call(self, *arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.path / "bash"), str(self.root / "remote/wheelhouse.sh"), *map(str, arguments)],
            env=self.variables | variables,
            cwd=self.root.parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def install(self, folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return self.call("install", folder, *arguments, **variables)

    def imported(self, environment: str, module: str) -> str:
        """Version of a module of an environment of the checkout; empty where it cannot be imported."""
        python = self.root / environment / "bin/python"
        done = subprocess.run(
            [python, "-I", "-c", f"import {module}; print({module}.version)"], capture_output=True, text=True
        )
        return done.stdout.strip()
