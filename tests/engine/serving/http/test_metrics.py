"""/metrics: every number against what was played."""

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from tests.engine.serving.http.fake_engine import END, FakeEngine, Peer, ask, fetch, ids, run, serving


async def scrape(port: int) -> dict[str, float]:
    """Samples by name, with their labels but `le` behind it; buckets are left out."""
    answer = await fetch(port, "/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    samples = {}
    for family in text_string_to_metric_families(answer.body.decode()):
        for sample in family.samples:
            if not sample.name.endswith(("_bucket", "_created")):
                samples[":".join([sample.name, *sample.labels.values()])] = sample.value
    return samples


def test_sequences_and_tokens_are_counted_at_their_end() -> None:
    async def test() -> None:
        engine = FakeEngine(answer=lambda prompt: [*ids("abc"), END])
        async with serving(engine) as (_, port):
            assert set((await scrape(port)).values()) == {0.0}
            await ask(port, {"prompt": "12345", "n": 2})
            await ask(port, {"prompt": "1", "max_tokens": 1, "stream": True})
            await ask(port, {"prompt": "1", "stop": "b"})
            now = await scrape(port)
        assert now["ladder_sequences_total:stop"] == 3
        assert now["ladder_sequences_total:length"] == 1
        assert now["ladder_prompt_tokens_total"] == 12
        assert now["ladder_generation_tokens_total"] == 4 + 4 + 1 + 2
        assert now["ladder_time_to_first_token_seconds_count"] == now["ladder_e2e_seconds_count"] == 4
        assert now["ladder_time_per_output_token_seconds_count"] == 3, "one token has no time per token"
        assert 0 < now["ladder_time_to_first_token_seconds_sum"] <= now["ladder_e2e_seconds_sum"]

    run(test())


def test_what_did_not_complete_is_told_apart() -> None:
    async def test() -> None:
        engine = FakeEngine()
        async with serving(engine) as (_, port):
            peer = await Peer.connect(port)
            peer.post({"prompt": "ab", "n": 2})
            await engine.until(lambda: len(engine.running) == 2)
            engine.emit(0, ids("x"), "length", cached=1)
            peer.close()
            await engine.until(lambda: engine.cancelled == [1])
            other = await Peer.connect(port)
            other.post({"prompt": "ab", "stream": True})
            await engine.until(lambda: 2 in engine.running)
            engine.emit(2, ids("x"), cached=1)
            engine.fail("broken")
            await other.answer()
            other.close()
            now = await scrape(port)
        assert [now[f"ladder_sequences_total:{how}"] for how in ("length", "cancelled", "error", "stop")] == [
            1,
            1,
            1,
            0,
        ]
        assert now["ladder_prefix_cache_hit_tokens_total"] == 2
        assert now["ladder_generation_tokens_total"] == 2
        assert now["ladder_time_to_first_token_seconds_count"] == 2
        assert now["ladder_e2e_seconds_count"] == 1

    run(test())


def test_the_engines_gauges() -> None:
    async def test() -> None:
        engine = FakeEngine()
        async with serving(engine) as (_, port):
            peers = [await Peer.connect(port) for _ in range(3)]
            for peer in peers:
                peer.post({"prompt": "a"})
            await engine.until(lambda: len(engine.running) == 3)
            engine.stats = {
                "running": 1, "waiting": 1, "kv_blocks_used": 7, "kv_blocks": 63, "preemptions": 5
            }  # fmt: skip
            now = await scrape(port)
            for peer in peers:
                peer.close()
            await asyncio.sleep(0)
        assert now["ladder_sequences_running"] == 1
        assert now["ladder_sequences_waiting"] == 2, "one is not known to the engine yet"
        assert (now["ladder_kv_blocks_used"], now["ladder_kv_blocks"]) == (7, 63)
        assert now["ladder_preemptions_total"] == 5

    run(test())
