"""Who may ask, and how many may wait: API key, bounded queue; the prefix cache's switches."""

import asyncio

import pytest

from engine.config import ConfigError
from engine.serving.http.app import ServerSettings, bind
from engine.serving.http.chat_template import ChatTemplate
from tests.engine.serving.http.fake_engine import (
    END,
    MODEL,
    FakeEngine,
    Peer,
    ask,
    fetch,
    ids,
    run,
    serving,
)

CHAT = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")


def test_everything_but_health_asks_for_the_key() -> None:
    paths = ("/v1/models", "/version", "/metrics", "/nowhere", f"/v1/models/{MODEL}")
    wrong = (
        "",
        "Bearer",
        "Bearer ",
        "Bearer secre",
        "Bearer secret1",
        "Basic secret",
        "secret",
        "Bearer sécret",
    )

    async def test() -> None:
        async with serving(engine := FakeEngine(), api_key="secret") as (_, port):
            assert (await fetch(port, "/health")).status == 200
            for path in paths:
                assert (await fetch(port, path)).status == 401, path
            for value in wrong:
                answer = await fetch(port, "/v1/models", headers=f"authorization: {value}\r\n")
                assert answer.status == 401, value
                assert answer.headers["www-authenticate"] == "Bearer"
                assert answer.error["type"] == "authentication_error"
                assert answer.error["code"] == "invalid_api_key"
                assert "secret" not in answer.error["message"]
            for value in ("Bearer secret", "bearer  secret"):
                answer = await fetch(port, "/v1/models", headers=f"authorization: {value}\r\n")
                assert answer.status == 200
            assert (await ask(port, {"prompt": "a"})).status == 401
            assert not engine.submitted

    run(test())


@pytest.mark.parametrize("settings", [{"max_queue": 0}, {"api_key": ""}, {"api_key": "é"}, {"api_key": " a"}])
def test_settings_that_cannot_be_met(settings: dict) -> None:
    with pytest.raises(ConfigError, match="max_queue is 0" if "max_queue" in settings else "API key"):
        bind(ServerSettings(MODEL, port=0, **settings))


def test_a_full_queue_turns_requests_away_and_takes_them_again() -> None:
    async def test() -> None:
        engine = FakeEngine(stats={"running": 0})
        async with serving(engine, chat_template=CHAT, max_queue=3) as (_, port):
            peers = [await Peer.connect(port) for _ in range(2)]
            peers[0].post({"prompt": "a", "n": 2})
            peers[1].post({"prompt": "a"})
            await engine.until(lambda: len(engine.running) == 3)
            for path, content in (
                ("/v1/completions", {"prompt": "a", "stream": True}),
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
            ):
                answer = await ask(port, content, path)
                assert (answer.status, answer.headers["retry-after"]) == (429, "1")
                assert (answer.error["type"], answer.error["code"]) == ("rate_limit_error", "queue_full")
                assert "3" in answer.error["message"]
            assert len(engine.submitted) == 3, "nothing was queued"
            assert b"ladder_queue_refusals_total 2.0" in (await fetch(port, "/metrics")).body
            engine.stats = {"running": 1}
            late = await Peer.connect(port)
            late.post({"prompt": "a"})
            await engine.until(lambda: len(engine.running) == 4)
            for id in range(4):
                engine.emit(id, ids("x"), "length")
            assert [(await peer.answer()).status for peer in (*peers, late)] == [200, 200, 200]
            for peer in (*peers, late):
                peer.close()

    run(test())


def test_prompts_that_are_tokenised_at_once_do_not_slip_past_the_limit() -> None:
    async def test() -> None:
        engine = FakeEngine()
        engine.info.max_model_len = 1 << 20
        async with serving(engine, max_queue=2) as (_, port):
            peers = [await Peer.connect(port) for _ in range(8)]
            for peer in peers:
                peer.post({"prompt": "a" * 5000})
            statuses = []

            async def read(peer: Peer) -> None:
                statuses.append((await peer.answer()).status)

            tasks = [asyncio.create_task(read(peer)) for peer in peers]
            while len(statuses) < 6:
                await asyncio.sleep(0.001)
            assert statuses == [429] * 6
            for id in range(2):
                engine.emit(id, ids("x"), "length")
            await asyncio.gather(*tasks)
            assert statuses[6:] == [200, 200]
            for peer in peers:
                peer.close()

    run(test())


def test_the_prefix_cache_is_reset_and_salted() -> None:
    async def test() -> None:
        engine = FakeEngine(answer=lambda _: [END])
        async with serving(engine) as (_, port):
            answer = await fetch(port, "/reset_prefix_cache", "POST")
            assert (answer.status, answer.json, engine.resets) == (200, {"reset": True}, 1)
            assert (await fetch(port, "/reset_prefix_cache")).status == 405
            await ask(port, {"prompt": "a", "cache_salt": "tenant 1"})
            await ask(port, {"prompt": "a"})
            assert [engine.submitted[i].cache_salt for i in range(2)] == ["tenant 1", ""]
            engine.fail("broken")
            answer = await fetch(port, "/reset_prefix_cache", "POST")
            assert (answer.status, answer.error["message"], engine.resets) == (503, "broken", 1)

    run(test())
