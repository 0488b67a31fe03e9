"""The null server as others see it, its command line and its end; and the ceiling measured against it."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from typing import Any

import psutil
import pytest

from harness.client.ceiling import measure_ceiling
from harness.client.null_process import MODEL, Lateness, Pace
from harness.client.null_server import NullServer


def ask(url: str, body: Any = None) -> tuple[int, bytes]:
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.fixture(scope="module")
def server():
    with NullServer(processes=2) as running:
        yield running


def test_health_and_models(server: NullServer) -> None:
    assert ask(server.url + "/health") == (200, b"{}")
    status, body = ask(server.url + "/v1/models")
    assert (status, json.loads(body)["data"][0]["id"]) == (200, MODEL)


@pytest.mark.parametrize(
    "options", [{}, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}]
)
def test_answers_like_an_openai_server(server: NullServer, options: dict) -> None:
    body = {"prompt": "one two three", "max_tokens": 4, "stream": True, "stream_options": options}
    status, answer = ask(server.url + "/v1/completions", body)
    *events, done, rest = answer.split(b"\n\n")
    assert (status, done, rest) == (200, b"data: [DONE]", b"")
    parsed = [json.loads(event.removeprefix(b"data: ")) for event in events]
    tokens = [event for event in parsed if event["choices"]]
    assert [event["choices"][0]["finish_reason"] for event in tokens] == [None, None, None, "length"]
    running = [event["usage"]["completion_tokens"] for event in tokens if "usage" in event]
    assert running == ([1, 2, 3, 4] if "continuous_usage_stats" in options else [])
    usages = [event["usage"] for event in parsed if not event["choices"]]
    expected = {"prompt_tokens": 3, "total_tokens": 7, "completion_tokens": 4}
    assert usages == ([expected] if options else [])


def test_token_ids_are_counted(server: NullServer) -> None:
    body = {"prompt": [7] * 500, "max_tokens": 2, "stream": True, "stream_options": {"include_usage": True}}
    answer = ask(server.url + "/v1/completions", body)[1]
    usage = json.loads(answer.split(b"\n\n")[-3].removeprefix(b"data: "))["usage"]
    assert usage == {"prompt_tokens": 500, "total_tokens": 502, "completion_tokens": 2}


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"{", "Expecting property name"),
        ([], "JSON object"),
        ({"stream": True}, "prompt must be"),
        ({"prompt": "a", "stream": True, "max_tokens": 0}, "max_tokens 0"),
        ({"prompt": "a", "stream": True, "max_tokens": True}, "max_tokens True"),
        ({"prompt": "a"}, "stream must be true"),
        ({"prompt": "a", "stream": True, "stream_options": 3}, "stream_options"),
    ],
)
def test_bad_requests_are_answered(server: NullServer, body: Any, named: str) -> None:
    status, answer = ask(server.url + "/v1/completions", body)
    assert status == 400
    assert named in json.loads(answer)["error"]["message"]
    assert ask(server.url + "/health")[0] == 200


def test_unknown_path(server: NullServer) -> None:
    assert ask(server.url + "/v1/nothing")[0] == 404


def test_taken_port_is_an_error(server: NullServer) -> None:
    with pytest.raises(OSError, match="in use"), NullServer(port=server.port):
        pass


def test_lateness_of_a_paced_server_is_known() -> None:
    with NullServer(pace=Pace.from_ms(3, 1)) as paced:
        assert json.loads(ask(paced.url + "/pacing")[1]) == {"tokens": 0}
        for _ in range(2):
            ask(paced.url + "/v1/completions", {"prompt": "a", "max_tokens": 10, "stream": True})
        pacing = json.loads(ask(paced.url + "/pacing")[1])
    assert pacing["tokens"] == 20
    assert 0 < pacing["late_us_p50"] <= pacing["late_us_p99"] <= pacing["late_us_max"]


def test_percentiles_of_lateness() -> None:
    lateness = Lateness()
    for late_us in (*range(5, 1000, 10), 10**9):
        lateness.add(late_us * 1000)
    assert lateness.summary() == {
        "tokens": 101,
        "late_us_p50": 510,
        "late_us_p99": 1000,
        "late_us_max": 100_000,
    }


def test_flat_out_nothing_is_late(server: NullServer) -> None:
    assert json.loads(ask(server.url + "/pacing")[1]) == {"tokens": 0}


@pytest.mark.parametrize(("ttft_ms", "tpot_ms"), [(-1, 1), (1, float("nan")), (float("inf"), 1)])
def test_impossible_pace_is_refused(ttft_ms: float, tpot_ms: float) -> None:
    with pytest.raises(ValueError, match="must be a time"):
        Pace.from_ms(ttft_ms, tpot_ms)


def test_processes_end_with_the_block() -> None:
    with NullServer(processes=2) as server:
        processes = [child for child in psutil.Process().children() if str(server.port) in child.cmdline()]
        assert len(processes) == 2
    assert not any(process.is_running() for process in processes)


def run_command(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "harness.client.null_server", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_command_serves_until_told_to_end() -> None:
    command = run_command("--ttft-ms", "1", "--tpot-ms", "0.5", "--processes", "2")
    url, _, name = command.stdout.readline().split()
    assert name == MODEL
    assert ask(url + "/health")[0] == 200
    processes = psutil.Process(command.pid).children()
    command.terminate()
    assert (command.wait(60), command.communicate()[1]) == (0, "")
    assert len(processes) == 2
    assert psutil.wait_procs(processes, timeout=60)[1] == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--ttft-ms", "1"), "belong together"),
        (("--ttft-ms", "-1", "--tpot-ms", "1"), "ttft_ms -1.0"),
        (("--processes", "0"), "processes 0"),
        (("--port", "70000"), "port"),
    ],
)
def test_command_refuses_bad_values(arguments: tuple[str, ...], named: str) -> None:
    command = run_command(*arguments)
    errors = command.communicate(timeout=60)[1]
    assert command.returncode == 2
    assert named in errors
    assert "Traceback" not in errors


def test_ceiling_is_measured() -> None:
    ceiling = measure_ceiling(workers=1, window_s=0.3, concurrency=8, tokens=20)
    assert ceiling.events_per_s > 0
    assert 1 <= ceiling.events_per_read <= 20
    declared = (
        ceiling.workers,
        ceiling.server_processes,
        ceiling.concurrency,
        ceiling.tokens,
        ceiling.window_s,
    )
    assert declared == (1, 1, 8, 20, 0.3)


def test_ceiling_refuses_bad_values() -> None:
    with pytest.raises(ValueError, match="window_s 0"):
        measure_ceiling(workers=1, window_s=0)


def test_ceiling_needs_a_list_that_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.client.ceiling.MAX_REQUESTS_PER_WORKER_S", 1)
    with pytest.raises(RuntimeError, match="all 9 requests were played before"):
        measure_ceiling(workers=1, window_s=0.3, concurrency=8, tokens=20)
