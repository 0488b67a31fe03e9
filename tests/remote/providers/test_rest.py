from __future__ import annotations

import socket
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from remote.errors import ProviderError, RemoteError
from remote.providers import rest
from remote.providers.rest import TRIES, Api, Fault, Key
from tests.remote.clocks import StillClock
from tests.remote.fake_vast import KEY, FakeVast, Trouble

LIST = "/api/v1/instances/"


@contextmanager
def raw_server(*parts: bytes, pause_s: float = 0.0) -> Iterator[str]:
    """Sends the parts, with a pause after each, to whoever connects, and closes the connection."""

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                for part in parts:
                    try:
                        connection.sendall(part)
                    except OSError:
                        break
                    time.sleep(pause_s)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_the_key_travels_in_the_header_only(api: Api, fake: FakeVast) -> None:
    fake.add_box("llm-ladder/night/1900000000")
    api.call("GET", LIST, query={"limit": "25"})
    api.call("GET", "/api/v0/instances/5001/")
    api.call("PUT", "/api/v0/instances/5001/", {"label": "other"})
    api.call("DELETE", "/api/v0/instances/5001/", {})
    assert {seen.headers["authorization"] for seen in fake.seen} == {f"Bearer {KEY}"}
    assert KEY not in str([(seen.path, seen.query, seen.body) for seen in fake.seen])


def test_no_repr_shows_the_key(api: Api) -> None:
    assert KEY not in repr(api) + str(api) + repr(api.key) + f"{api.key}"


@pytest.mark.parametrize("value", ["two words-012345", "line\nbreak-0123", "ключ-0123456789", "short", ""])
def test_an_unusable_key_is_refused_without_showing_it(value: str) -> None:
    with pytest.raises(RemoteError, match="printable ASCII") as caught:
        Key(value)
    assert not value or value not in str(caught.value)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_does_not_carry_the_key_elsewhere(api: Api, fake: FakeVast, status: int) -> None:
    with FakeVast() as other:
        fake.troubles.append(Trouble("GET", LIST, status=status, headers={"Location": other.url + LIST}))
        with pytest.raises(Fault, match=f"status {status}"):
            api.call("GET", LIST)
        assert other.seen == []


@pytest.mark.parametrize("base", ["http://console.vast.ai", "http://10.0.0.1", "ftp://x", "vast.ai", ""])
def test_plain_http_is_for_loopback_only(base: str) -> None:
    with pytest.raises(RemoteError, match="https"):
        Api(base, Key(KEY))


def test_a_key_that_the_server_echoes_is_cut_out(api: Api, fake: FakeVast) -> None:
    fake.troubles.append(Trouble("GET", LIST, status=400, body=f"bad key {KEY} in request"))
    with pytest.raises(Fault) as caught:
        api.call("GET", LIST)
    shown = "".join(traceback.format_exception(caught.value)) + caught.value.text + repr(caught.value)
    assert KEY not in shown
    assert "bad key [key] in request" in str(caught.value)


def test_a_storm_passes(api: Api, fake: FakeVast, still: StillClock) -> None:
    for status in (429, 500, 502, 503, 504):
        fake.troubles.append(Trouble("GET", LIST, status=status, body="try later"))
    assert api.call("GET", LIST)["instances"] == []
    assert len(still.slept) == 5
    assert [pause >= 0.7 * 2**index for index, pause in enumerate(still.slept)] == [True] * 5


def test_a_storm_that_does_not_pass_is_an_error(api: Api, fake: FakeVast) -> None:
    fake.troubles.append(Trouble("GET", LIST, times=99, status=503, body="upstream is down"))
    with pytest.raises(Fault, match="status 503: upstream is down"):
        api.call("GET", LIST)
    assert len(fake.seen) == TRIES


def test_one_try_is_one_request(api: Api, fake: FakeVast) -> None:
    fake.troubles.append(Trouble("GET", LIST, times=99))
    with pytest.raises(Fault):
        api.call("GET", LIST, tries=1)
    assert len(fake.seen) == 1


def test_a_pause_that_is_asked_for_is_kept(api: Api, fake: FakeVast, still: StillClock) -> None:
    fake.troubles.append(Trouble("GET", LIST, status=429, headers={"Retry-After": "17"}))
    api.call("GET", LIST)
    assert still.slept == [17.0]


def test_a_long_pause_is_left_to_the_user(api: Api, fake: FakeVast, still: StillClock) -> None:
    fake.troubles.append(Trouble("GET", LIST, times=9, status=429, headers={"Retry-After": "3600"}))
    with pytest.raises(Fault, match="429"):
        api.call("GET", LIST)
    assert still.slept == []


def test_a_pause_as_a_date_counts_as_none(api: Api, fake: FakeVast, still: StillClock) -> None:
    headers = {"Retry-After": "Mon, 30 Nov 2026 15:00:00 GMT"}
    fake.troubles.append(Trouble("GET", LIST, status=503, headers=headers))
    api.call("GET", LIST)
    assert len(still.slept) == 1 and still.slept[0] < 2


def test_a_daily_quota_is_not_tried_again(api: Api, fake: FakeVast) -> None:
    body = {"success": False, "error": "search_quota_exceeded"}
    fake.troubles.append(Trouble("GET", LIST, times=9, status=429, body=body))
    with pytest.raises(Fault, match="search_quota_exceeded"):
        api.call("GET", LIST)
    assert len(fake.seen) == 1


def test_a_refusal_is_not_tried_again(api: Api, fake: FakeVast) -> None:
    fake.troubles.append(Trouble("GET", LIST, times=9, status=400, body={"error": "invalid_args"}))
    with pytest.raises(Fault):
        api.call("GET", LIST)
    assert len(fake.seen) == 1


@pytest.mark.parametrize("body", ["", "<html>down</html>", "[]", "null", '{"instances": [', "\ufeff{}"])
def test_an_answer_that_is_no_object_is_no_answer(api: Api, fake: FakeVast, body: str) -> None:
    fake.troubles.append(Trouble("GET", LIST, times=99, status=200, body=body))
    with pytest.raises(Fault, match="no JSON object"):
        api.call("GET", LIST)


def test_a_lost_answer_was_sent(api: Api, fake: FakeVast) -> None:
    fake.troubles.append(Trouble("GET", LIST, cut=True))
    with pytest.raises(Fault, match="no answer") as caught:
        api.call("GET", LIST, tries=1)
    assert caught.value.sent


def test_a_refused_connection_was_not_sent(still: StillClock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(Fault, match="no answer") as caught:
        Api(f"http://127.0.0.1:{port}", Key(KEY), still.clock).call("GET", LIST)
    assert not caught.value.sent
    assert len(still.slept) == TRIES - 1


def test_a_silent_server_is_given_up(fake: FakeVast, still: StillClock) -> None:
    fake.troubles.append(Trouble("GET", LIST, wait_s=1.0))
    with pytest.raises(Fault, match="no answer: TimeoutError") as caught:
        Api(fake.url, Key(KEY), still.clock, timeout_s=0.2).call("GET", LIST, tries=1)
    assert caught.value.sent


def test_a_trickling_answer_is_given_up(still: StillClock) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
    with (
        raw_server(head, *[b" "] * 100, pause_s=0.05) as url,
        pytest.raises(Fault, match=r"longer than the limit of 0\.3 s"),
    ):
        Api(url, Key(KEY), still.clock, timeout_s=0.3).call("GET", LIST, tries=1)


def test_a_cut_answer_is_none(still: StillClock) -> None:
    head = b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"instances": ['
    with raw_server(head) as url, pytest.raises(Fault, match="no JSON object"):
        Api(url, Key(KEY), still.clock).call("GET", LIST, tries=1)


@pytest.mark.parametrize("answer", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 500 X\r\nContent-Length: 9\r\n\r\n"])
def test_broken_http_is_a_fault(still: StillClock, answer: bytes) -> None:
    with raw_server(answer) as url, pytest.raises(Fault):
        Api(url, Key(KEY), still.clock).call("GET", LIST, tries=1)


def test_an_endless_answer_is_given_up(api: Api, fake: FakeVast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "MAX_ANSWER_BYTES", 1000)
    fake.troubles.append(Trouble("GET", LIST, status=200, body="x" * 2000))
    with pytest.raises(Fault, match="longer than the limit of 1000 bytes"):
        api.call("GET", LIST, tries=1)


def test_a_public_text_is_asked_for_without_the_key(api: Api, fake: FakeVast) -> None:
    assert api.public_text(fake.url + "/results/9.log") is None
    assert "authorization" not in fake.seen[0].headers


def test_a_public_text_over_plain_http_is_refused(still: StillClock, fake: FakeVast) -> None:
    with pytest.raises(ProviderError, match="not https"):
        Api("https://console.vast.ai", Key(KEY), still.clock).public_text(fake.url + "/results/1.log")
    assert fake.seen == []
