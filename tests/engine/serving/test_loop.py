"""When the engine process checks itself."""

import gc
import socket
import threading

import pytest

from engine.serving import link, loop


class IdleEngine:
    """Never has work; counts its checks."""

    has_work = False

    def __init__(self) -> None:
        self.checks = 0
        self.resets: list[int] = []

    def check(self) -> None:
        self.checks += 1

    def step(self) -> list:
        return []

    def reset_prefix_cache(self) -> None:
        self.resets.append(self.checks)


def test_an_idle_engine_checks_itself_once_and_never_before_it_is_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop, "IDLE_SECONDS", 30.0)
    ours, theirs = socket.socketpair()
    engine = IdleEngine()
    serving = threading.Thread(target=loop._serve, args=(engine, theirs, loop._Inbox(theirs)))
    serving.start()
    for _ in range(3):
        ours.sendall(link.pack(link.RESET_PREFIX_CACHE, None))
    ours.sendall(link.pack(link.STOP, None))
    serving.join(timeout=20)
    assert not serving.is_alive(), "an order had to wait for the engine's check"
    assert engine.resets == [0, 0, 0]

    monkeypatch.setattr(loop, "IDLE_SECONDS", 0.01)
    serving = threading.Thread(target=loop._serve, args=(engine, theirs, loop._Inbox(theirs)))
    serving.start()
    while engine.checks == 0:
        assert serving.is_alive()
    ours.sendall(link.pack(link.STOP, None))
    serving.join()
    assert engine.checks == 1


def test_garbage_is_collected_when_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "IDLE_SECONDS", 0.01)
    collections = []
    gc.callbacks.append(lambda phase, info: collections.append((phase, info["generation"])))
    ours, theirs = socket.socketpair()
    engine = IdleEngine()
    serving = threading.Thread(target=loop._serve, args=(engine, theirs, loop._Inbox(theirs)))
    gc.disable()
    try:
        serving.start()
        while engine.checks == 0:
            assert serving.is_alive()
        ours.sendall(link.pack(link.STOP, None))
        serving.join()
    finally:
        gc.enable()
        gc.callbacks.pop()
    assert collections == [("start", 2), ("stop", 2)]
