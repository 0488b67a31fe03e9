import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from harness.systems.process import TELLING_PREFIXES, Launch, ServerError, already_running, free_port, running

ROOT = Path(__file__).parents[3]

# Answers /health, with a child that leaves the session and ignores SIGTERM, as engines' worker processes may.
SERVER = """
    import http.server, os, signal, subprocess, sys, time
    port, pids, health, stubborn = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4] == "stubborn"
    sleeper = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", sleeper], start_new_session=True)
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open(pids + ".tmp", "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    os.rename(pids + ".tmp", pids)
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(health)
            self.end_headers()
        def log_message(self, *_):
            pass
    print("serving", flush=True)
    http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def wait_until(condition, what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def server(folder: Path, *, health: int = 200, stubborn: bool = False, ready_limit_s: float = 60) -> Launch:
    script = folder / "server.py"
    script.write_text(textwrap.dedent(SERVER))
    port = free_port()
    argv = [
        sys.executable,
        str(script),
        str(port),
        str(folder / "pids"),
        str(health),
        "stubborn" if stubborn else "-",
    ]
    return Launch(argv, dict(os.environ), folder, ready_limit_s, port)


def server_pids(folder: Path) -> list[int]:
    wait_until((folder / "pids").exists, "server did not start")
    return [int(pid) for pid in (folder / "pids").read_text().split()]


def no_wait(_seconds: float) -> None:
    pass


def test_a_server_is_up_inside_the_block_and_gone_after_it(tmp_path):
    with running(server(tmp_path), tmp_path / "log", no_wait) as up:
        pids = server_pids(tmp_path)
        assert all(map(alive, pids))
        assert up.startup_s > 0
    assert not any(map(alive, pids))
    assert (tmp_path / "log").read_text().startswith("serving")


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a_server_is_gone_after_an_error(tmp_path, error):
    with pytest.raises(error), running(server(tmp_path), tmp_path / "log", no_wait):
        pids = server_pids(tmp_path)
        raise error
    assert not any(map(alive, pids))


def test_a_server_that_ignores_sigterm_is_killed(tmp_path, monkeypatch):
    script = tmp_path / "watchdog.py"
    from harness.systems import watchdog

    script.write_text(Path(watchdog.__file__).read_text().replace("GRACE_S = 20.0", "GRACE_S = 0.1"))
    monkeypatch.setattr(watchdog, "__file__", str(script))
    with running(server(tmp_path, stubborn=True), tmp_path / "log", no_wait):
        pids = server_pids(tmp_path)
    assert not any(map(alive, pids))
    assert "killing" in (tmp_path / "log").read_text()


def test_an_early_end_is_an_error_with_the_last_log_lines(tmp_path):
    ended = Launch(
        [sys.executable, "-c", "print('no model here'); raise SystemExit(3)"], dict(os.environ), None, 60, 1
    )
    with (
        pytest.raises(ServerError, match=r"status 3 before it was ready\n.*\nno model here"),
        running(ended, tmp_path / "log", no_wait),
    ):
        raise AssertionError("never ready")


def test_an_interpreter_that_is_not_there_is_an_early_end(tmp_path):
    missing = Launch(["/no/such/python", "-m", "engine"], dict(os.environ), None, 60, 1)
    with pytest.raises(ServerError, match="/no/such/python"), running(missing, tmp_path / "log", no_wait):
        raise AssertionError("never ready")


def test_a_server_that_never_gets_healthy_is_given_up_and_stopped(tmp_path):
    waits = []
    with (
        pytest.raises(ServerError, match=r"not ready after 0\.5 s"),
        running(server(tmp_path, health=503, ready_limit_s=0.5), tmp_path / "log", waits.append),
    ):
        raise AssertionError("never ready")
    assert waits == sorted(waits)
    wait_until(
        lambda: not (tmp_path / "pids").exists() or not any(map(alive, server_pids(tmp_path))), "left behind"
    )


def test_a_frozen_server_still_ends_in_its_own_way(tmp_path):
    with running(server(tmp_path), tmp_path / "log", no_wait) as up:
        pids = server_pids(tmp_path)
        up.freeze()
    assert not any(map(alive, pids))
    assert "s after SIGTERM" in (tmp_path / "log").read_text()


def test_a_server_of_somebody_else_is_used_and_left_alone(tmp_path):
    with running(server(tmp_path), tmp_path / "log", no_wait) as ours:
        theirs = already_running(ours.url, "m")
        theirs.freeze()
        assert theirs.startup_s == 0
        theirs.check()
        assert already_running(ours.url, "m") == theirs
    with pytest.raises(ServerError, match=f"{ours.url} does not answer"):
        already_running(ours.url, "m")


def test_a_server_that_dies_while_it_is_used_is_noticed(tmp_path):
    with (
        pytest.raises(ServerError, match="while it was used"),
        running(server(tmp_path), tmp_path / "log", no_wait) as up,
    ):
        pids = server_pids(tmp_path)
        os.kill(pids[0], signal.SIGKILL)
        wait_until(lambda: not alive(up.watchdog.pid), "the watchdog waits on")
        with pytest.raises(ServerError, match="while it was used"):
            up.check()
        up.freeze()
        up.thaw()
    assert not any(map(alive, pids))


def test_kill_9_of_the_harness_leaves_no_server(tmp_path):
    harness = f"""
        import sys, time
        from pathlib import Path
        sys.path.insert(0, {str(ROOT)!r})
        from tests.harness.systems.test_process import no_wait, running, server
        with running(server(Path({str(tmp_path)!r})), Path({str(tmp_path / "log")!r}), no_wait):
            Path({str(tmp_path / "up")!r}).touch()
            time.sleep(600)
    """
    killed = subprocess.Popen([sys.executable, "-c", textwrap.dedent(harness)])
    wait_until((tmp_path / "up").exists, "harness did not get its server")
    pids = server_pids(tmp_path)
    assert all(map(alive, pids))
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    wait_until(lambda: not any(map(alive, pids)), "the server outlived the harness")


def test_additions_name_what_differs_from_the_harness_and_what_tells_how_a_server_runs(monkeypatch):
    for name in [name for name in os.environ if name.startswith(TELLING_PREFIXES)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("VLLM_ATTENTION_BACKEND", "inherited")
    environment = dict(os.environ) | {"HF_HUB_OFFLINE": "x", "PATH": "/venv/bin:" + os.environ["PATH"]}
    made = Launch([], environment, None, 1, 1)
    assert made.additions == {
        "HF_HUB_OFFLINE": "x", "PATH": "/venv/bin:$PATH", "VLLM_ATTENTION_BACKEND": "inherited",
    }  # fmt: skip
