"""remote/box/power_down.sh in a process namespace of its own, where process 1 stands for a container's."""

from __future__ import annotations

import http.server
import json
import os
import pwd
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.remote.checkout import ROOT

pytestmark = pytest.mark.slow  # real servers and real waits, some minutes in all

SCRIPT = ROOT / "remote" / "box" / "power_down.sh"
HOME = pwd.getpwuid(os.geteuid()).pw_dir
NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


@pytest.fixture
def namespace() -> str:
    """The namespace of this process, which the script must never run in."""
    done = subprocess.run([*NAMESPACE, "readlink", "/proc/self/ns/pid"], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"no namespace can be made here: {done.stderr.strip()}")
    ours = str(Path("/proc/self/ns/pid").readlink())
    assert done.stdout.strip() != ours
    return ours


def contain(namespace: str, main: str, **variables: str) -> int:
    """Exit status of a container with this main process; `$DOWN` in it powers the container down."""
    guard = f'[[ "$(readlink /proc/self/ns/pid)" != "{namespace}" ]] || exit 99\n'
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": HOME,
        "DOWN": f"bash {SCRIPT}",
        "LLM_LADDER_POWER_DOWN_AGAIN_S": "0.3",
        "no_proxy": "*",
        **variables,
    }
    return subprocess.run(
        [*NAMESPACE, "bash", "-c", guard + main],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
    ).returncode


def test_a_main_process_that_obeys_is_ended(namespace: str, tmp_path: Path) -> None:
    main = f"trap 'touch {tmp_path}/obeyed; exit 3' TERM; $DOWN & sleep 1000 & wait; exit 4"
    assert contain(namespace, main) == 3
    assert (tmp_path / "obeyed").exists()


def test_a_main_process_that_waits_for_another_ends_with_it(namespace: str) -> None:
    assert contain(namespace, "(setsid $DOWN &) ; sleep 1000; exit 5") == 5


def test_outside_the_home_of_the_account_nothing_happens(namespace: str, tmp_path: Path) -> None:
    assert contain(namespace, "$DOWN; exit $?", HOME=str(tmp_path)) == 1


class Api(http.server.BaseHTTPRequestHandler):
    seen: list[tuple[str, str, str | None, bytes]]

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append((self.command, self.path, self.headers["Authorization"], body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def api() -> Iterator[http.server.HTTPServer]:
    Api.seen = []
    with http.server.HTTPServer(("127.0.0.1", 0), Api) as server:
        threading.Thread(target=server.serve_forever).start()
        yield server
        server.shutdown()


def test_with_a_key_for_itself_the_instance_is_stopped(namespace: str, api: http.server.HTTPServer) -> None:
    variables = {
        "CONTAINER_ID": "12345",
        "CONTAINER_API_KEY": "instance-key",
        "VAST_URL": f"http://127.0.0.1:{api.server_port}",
    }
    assert contain(namespace, "trap 'exit 3' TERM; $DOWN & sleep 1000 & wait", **variables) == 3
    method, path, authorization, body = Api.seen[0]
    assert (method, path, authorization) == ("PUT", "/api/v0/instances/12345/", "Bearer instance-key")
    assert json.loads(body) == {"state": "stopped"}


def test_without_an_answer_it_goes_on_by_other_means(namespace: str) -> None:
    variables = {"CONTAINER_ID": "1", "CONTAINER_API_KEY": "k", "VAST_URL": "http://127.0.0.1:9"}
    assert contain(namespace, "trap 'exit 3' TERM; $DOWN & sleep 1000 & wait", **variables) == 3
