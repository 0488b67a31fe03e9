"""Parameters that reach the engine as they are, n choices of a prompt, and what stays refused."""

import asyncio
from dataclasses import replace

import pytest

from engine.serving.http.chat_template import ChatTemplate
from engine.serving.http.schema import UNSUPPORTED, ChatRequest, CompletionRequest, choice_seed
from tests.engine.serving.http.fake_engine import END, FakeEngine, Peer, ask, ids, run, serving

CHAT = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
ENDPOINTS = {
    "/v1/completions": (CompletionRequest, {"prompt": "a"}),
    "/v1/chat/completions": (ChatRequest, {"messages": [{"role": "user", "content": "a"}]}),
}
ASKS = {"add_generation_prompt": False, "echo": True, "top_logprobs": 3}


def answering(text: str) -> FakeEngine:
    return FakeEngine(answer=lambda _: [*ids(text), END])


@pytest.mark.parametrize("path", ENDPOINTS)
def test_parameters_reach_the_engine(path: str) -> None:
    asked = {
        "min_tokens": 3, "repetition_penalty": 1.2, "presence_penalty": -2, "frequency_penalty": 2,
        "logit_bias": {"5": 1, "299": -100}, "priority": -7, "max_tokens": 9,
    }  # fmt: skip

    async def test() -> None:
        async with serving(engine := answering("x"), chat_template=CHAT) as (_, port):
            assert (await ask(port, ENDPOINTS[path][1] | asked, path)).status == 200
            assert (await ask(port, ENDPOINTS[path][1], path)).status == 200
        params = engine.submitted[0].params
        assert (params.min_tokens, params.repetition_penalty) == (3, 1.2)
        assert (params.presence_penalty, params.frequency_penalty) == (-2, 2)
        assert params.logit_bias == ((5, 1.0), (299, -100.0))
        assert [engine.submitted[i].priority for i in range(2)] == [-7, 0]
        plain = engine.submitted[1].params
        neutral = replace(plain, min_tokens=0, repetition_penalty=1.0, presence_penalty=0.0,
                          frequency_penalty=0.0, logit_bias=(), logprobs=None)  # fmt: skip
        assert plain == neutral

    run(test())


def test_unsupported_are_those_that_an_endpoint_lacks_and_all_of_them_are_refused() -> None:
    async def test() -> None:
        async with serving(engine := FakeEngine(), chat_template=CHAT) as (_, port):
            for name, neutral in UNSUPPORTED.items():
                lacking = [path for path, (kind, _) in ENDPOINTS.items() if name not in kind.model_fields]
                assert lacking, f"{name} is supported everywhere"
                for path in lacking:
                    asks = ENDPOINTS[path][1] | {name: ASKS.get(name, {"x": 1})}
                    answer = await ask(port, asks, path)
                    assert (answer.status, answer.error["param"]) == (400, name)
                    assert answer.error["code"] == "unsupported_parameter"
                assert ASKS.get(name, {"x": 1}) not in neutral
            assert not engine.submitted

    run(test())


@pytest.mark.parametrize("stream", [False, True])
def test_choice_i_of_prompt_p_has_index_p_times_n_plus_i(stream: bool) -> None:
    async def test() -> None:
        engine = FakeEngine(answer=lambda prompt: prompt)
        async with serving(engine) as (_, port):
            answer = await ask(
                port,
                {"prompt": ["ab", "c"], "n": 3, "best_of": 3, "stream": stream, "max_tokens": 2,
                 "stream_options": {"include_usage": True} if stream else None},
            )  # fmt: skip
        texts = dict.fromkeys(range(6), "")
        events = answer.events[:-1] if stream else [answer.json]
        for event in events:
            for choice in event["choices"]:
                texts[choice["index"]] += choice["text"]
        assert list(texts.values()) == ["ab"] * 3 + ["c"] * 3
        usage = events[-1]["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (3, 9, 12)

    run(test())


def test_cached_tokens_count_once_per_prompt() -> None:
    async def test() -> None:
        async with serving(engine := FakeEngine()) as (_, port):
            peer = await Peer.connect(port)
            peer.post({"prompt": "abcd", "n": 2})
            await engine.until(lambda: len(engine.running) == 2)
            engine.emit(1, ids("x"), "length", cached=3)
            engine.emit(0, ids("x"), "length", cached=2)
            assert (await peer.answer()).json["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
            peer.close()

    run(test())


def test_each_choice_has_a_seed_of_its_own_that_repeats_it_alone() -> None:
    async def test() -> None:
        async with serving(engine := answering("x")) as (_, port):
            for content in (
                {"prompt": "a", "n": 4, "seed": -5},
                {"prompt": "a", "n": 4, "seed": -5},
                {"prompt": "a", "seed": choice_seed(-5, 2)},
                {"prompt": "a", "n": 4},
            ):
                assert (await ask(port, content)).status == 200
        seeds = [request.params.seed for request in engine.submitted.values()]
        assert seeds[0] == -5 and len(set(seeds[:4])) == 4
        assert seeds[4:8] == seeds[:4]
        assert seeds[8] == seeds[2]
        assert len(set(seeds[9:])) == 4

    run(test())


def test_derived_seeds_are_stable_int64_and_do_not_meet() -> None:
    # The published first outputs of SplitMix64 from state 1234567.
    assert [choice_seed(1234567, i) % (1 << 64) for i in (1, 2, 3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]
    seeds = [choice_seed(seed, i) for seed in range(-50, 50) for i in range(64)]
    assert len(set(seeds)) == len(seeds)
    assert all(-(1 << 63) <= seed < 1 << 63 for seed in seeds)


@pytest.mark.parametrize("stream", [False, True])
def test_a_peer_that_leaves_or_an_error_ends_all_choices(stream: bool) -> None:
    async def test() -> None:
        async with serving(engine := FakeEngine()) as (_, port):
            peer = await Peer.connect(port)
            peer.post({"prompt": "a", "n": 3, "stream": stream})
            await engine.until(lambda: len(engine.running) == 3)
            engine.emit(1, [], "refused", "no room")
            await engine.until(lambda: sorted(engine.cancelled) == [0, 2])
            assert (await peer.answer()).status == 400
            peer.post({"prompt": "a", "n": 3, "stream": stream})
            await engine.until(lambda: 5 in engine.running)
            peer.close()
            await engine.until(lambda: sorted(engine.cancelled) == [0, 2, 3, 4, 5])
            await asyncio.sleep(0)

    run(test())


def test_no_stop_string_is_met_before_min_tokens() -> None:
    async def test() -> None:
        async with serving(answering("aSTOPbSTOPc")) as (_, port):
            answer = await ask(port, {"prompt": "x", "stop": "STOP", "min_tokens": 6})
        assert answer.json["choices"][0]["text"] == "aSTOPb"
        assert answer.json["usage"]["completion_tokens"] == 10

    run(test())
