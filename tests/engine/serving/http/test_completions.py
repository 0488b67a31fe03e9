"""/v1/completions against an engine double, over real sockets: answers, streams, and every refusal.

Faults others had, met here: an over-long prompt dropped without a reply (mini-sglang), an empty prompt or a
huge max_tokens that stops the engine (vllm#7283, vllm#40302), a stop string that leaks its first half
(TGI#1254) or shifts the counts (vllm PR#45636).
"""

import asyncio
import json

import pytest

from engine.serving.http.protocol import Connection
from tests.engine.serving.http.fake_engine import (
    CONTEXT,
    END,
    MODEL,
    TOKENIZER,
    VOCABULARY,
    FakeEngine,
    Peer,
    ask,
    byte_tokenizer,
    ids,
    run,
    serving,
)


def answering(text: str, end: bool = True) -> FakeEngine:
    return FakeEngine(answer=lambda _: ids(text) + [END] * end)


def usage(prompt: int, completion: int, cached: int = 0) -> dict:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def test_a_plain_answer() -> None:
    async def test() -> None:
        async with serving(engine := answering("né!")) as (_, port):
            answer = await ask(
                port, {"model": MODEL, "prompt": "Hi", "max_tokens": 20, "temperature": 0, "user": "x"}
            )
        assert answer.status == 200
        assert answer.headers["content-type"] == "application/json"
        reply = answer.json
        assert reply["object"] == "text_completion"
        assert reply["id"].startswith("cmpl-")
        assert reply["model"] == MODEL
        assert reply["choices"] == [{"index": 0, "text": "né!", "logprobs": None, "finish_reason": "stop"}]
        assert reply["usage"] == usage(2, 5)
        assert engine.submitted[0].prompt_ids == ids("Hi")

    run(test())


def test_sampling_parameters_reach_the_engine() -> None:
    async def test() -> None:
        async with serving(engine := answering("x")) as (_, port):
            await ask(
                port,
                {"prompt": [1, 2], "max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 5,
                 "min_p": 0.1, "seed": -3, "ignore_eos": True, "stop": "zz", "stop_token_ids": [9]},
            )  # fmt: skip
            await ask(port, {"prompt": "a", "max_tokens": None, "top_k": -1})
            await ask(port, {"prompt": "a" * (CONTEXT - 3)})
        asked, default, cut = (engine.submitted[i].params for i in range(3))
        assert (asked.max_tokens, asked.temperature, asked.top_p, asked.top_k, asked.min_p) == (
            7,
            0.5,
            0.9,
            5,
            0.1,
        )
        assert (asked.seed, asked.ignore_eos, asked.stop, asked.stop_token_ids) == (-3, True, ("zz",), (9,))
        assert engine.submitted[0].prompt_ids == [1, 2]
        assert (default.max_tokens, default.temperature, default.top_p, default.top_k) == (16, 1.0, 1.0, 0)
        assert default.seed != cut.seed, "requests without a seed draw one each"
        assert cut.max_tokens == 3

    run(test())


def test_a_stream_has_an_event_for_each_step_and_characters_stay_whole() -> None:
    async def test() -> None:
        async with serving(answering("né!")) as (_, port):
            answer = await ask(port, {"prompt": "Hi", "stream": True})
        assert answer.headers["content-type"].startswith("text/event-stream")
        *events, done = answer.events
        assert done == "[DONE]"
        assert [event["choices"][0]["text"] for event in events] == ["n", "", "é", "!", ""]
        assert [event["choices"][0]["finish_reason"] for event in events] == [None] * 4 + ["stop"]
        assert all("usage" not in event for event in events)
        assert len({event["id"] for event in events}) == 1

    run(test())


def test_usage_in_streams() -> None:
    async def test() -> None:
        engine = FakeEngine()
        async with serving(engine) as (_, port):
            for options, seen in (
                ({"include_usage": True}, [None, None, usage(2, 3, 1)]),
                ({"continuous_usage_stats": True}, [usage(2, 2, 1), usage(2, 3, 1)]),
                (
                    {"include_usage": True, "continuous_usage_stats": True},
                    [usage(2, 2, 1), usage(2, 3, 1), usage(2, 3, 1)],
                ),
            ):
                peer = await Peer.connect(port)
                peer.post({"prompt": "Hi", "stream": True, "stream_options": options})
                await engine.until(lambda: bool(engine.running))
                [id] = engine.running
                engine.emit(id, ids("ab"), cached=1)
                engine.emit(id, ids("c"), "length", cached=1)
                *events, _ = (await peer.answer()).events
                assert [event["usage"] for event in events] == seen
                assert ([event["choices"] for event in events][-1] == []) == ("include_usage" in options)
                peer.close()

    run(test())


@pytest.mark.parametrize("stream", [False, True])
def test_several_prompts_are_several_choices(stream: bool) -> None:
    async def test() -> None:
        engine = FakeEngine(answer=lambda prompt: prompt[::-1])
        async with serving(engine) as (_, port):
            answer = await ask(port, {"prompt": ["ab", ids("cde")], "stream": stream, "max_tokens": 3})
        texts, finishes = {0: "", 1: ""}, {}
        for event in [event for event in answer.events if event != "[DONE]"] if stream else [answer.json]:
            for choice in event["choices"]:
                texts[choice["index"]] += choice["text"]
                finishes[choice["index"]] = choice["finish_reason"]
        assert texts == {0: "ba", 1: "edc"}
        assert finishes == {0: "length", 1: "length"}
        if not stream:
            assert answer.json["usage"] == usage(5, 5)

    run(test())


def test_a_step_is_one_write_whatever_the_number_of_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    write = Connection.write
    monkeypatch.setattr(Connection, "write", lambda self, data: (written.append(data), write(self, data)))

    async def test() -> None:
        engine = FakeEngine()
        async with serving(engine) as (_, port):
            peer = await Peer.connect(port)
            peer.post({"prompt": ["a", "b", "c"], "stream": True})
            await engine.until(lambda: len(engine.running) == 3)
            for finish in (None, "length"):
                for id in range(3):
                    engine.emit(id, ids("x"), finish)
                await asyncio.sleep(0.01)
            assert len((await peer.answer()).events) == 7
            peer.close()

    run(test())
    assert len(written) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_choice_and_the_engine_request(stream: bool) -> None:
    async def test() -> None:
        async with serving(engine := answering("one two STOP three", end=False)) as (_, port):
            answer = await ask(
                port, {"prompt": "x", "max_tokens": 18, "stop": ["never", " STOP"], "stream": stream}
            )
            await engine.until(lambda: engine.cancelled == [0])
        events = [event for event in answer.events if event != "[DONE]"] if stream else [answer.json]
        choices = [event["choices"][0] for event in events]
        assert "".join(choice["text"] for choice in choices) == "one two"
        assert choices[-1]["finish_reason"] == "stop"
        if stream:
            assert len(choices) == len("one two STOP"), "held back text still tells of its step"
            assert not any("S" in choice["text"] for choice in choices)
        else:
            assert answer.json["usage"]["completion_tokens"] == len("one two STOP")

    run(test())


def test_held_back_text_comes_out_when_the_stop_string_does_not() -> None:
    async def test() -> None:
        async with serving(engine := answering("so ST", end=False)) as (_, port):
            answer = await ask(port, {"prompt": "x", "max_tokens": 5, "stop": "STOP"})
        assert answer.json["choices"][0] == {
            "index": 0,
            "text": "so ST",
            "logprobs": None,
            "finish_reason": "length",
        }
        assert engine.cancelled == []

    run(test())


def test_stop_tokens_count_and_are_not_shown() -> None:
    async def test() -> None:
        engine = FakeEngine()
        async with serving(engine) as (_, port):
            peer = await Peer.connect(port)
            peer.post({"prompt": "x", "stop_token_ids": ids("!")})
            await engine.until(lambda: bool(engine.running))
            engine.emit(0, ids("hey!"), "stop")
            answer = await peer.answer()
            peer.close()
        assert answer.json["choices"][0]["text"] == "hey"
        assert answer.json["usage"]["completion_tokens"] == 4

    run(test())


def test_an_unfinished_character_comes_as_a_replacement_at_the_end() -> None:
    async def test() -> None:
        async with serving(FakeEngine(answer=lambda _: ids("é"))) as (_, port):
            answer = await ask(port, {"prompt": "x", "max_tokens": 1, "stream": True})
        assert answer.events[0]["choices"][0]["text"] == "\ufffd"

    run(test())


@pytest.mark.parametrize("stream", [False, True])
def test_token_ids_on_request(stream: bool) -> None:
    async def test() -> None:
        async with serving(FakeEngine(answer=lambda _: [5, VOCABULARY - 1, END])) as (_, port):
            answer = await ask(port, {"prompt": [7, 8], "stream": stream, "return_token_ids": True})
        events = answer.events[:-1] if stream else [answer.json]
        choices = [event["choices"][0] for event in events]
        assert [id for choice in choices for id in choice["token_ids"]] == [5, VOCABULARY - 1, END]
        assert choices[0]["prompt_token_ids"] == [7, 8]
        assert not any("prompt_token_ids" in choice for choice in choices[1:])

    run(test())


def test_special_tokens_of_the_prompt() -> None:
    async def test() -> None:
        async with serving(engine := answering("x"), byte_tokenizer(begin=True)) as (_, port):
            await ask(port, {"prompt": "a"})
            await ask(port, {"prompt": "a", "add_special_tokens": False})
        assert [engine.submitted[i].prompt_ids for i in range(2)] == [[257, *ids("a")], ids("a")]

    run(test())


def test_long_prompts_are_tokenised_like_short_ones() -> None:
    async def test() -> None:
        engine = answering("x")
        engine.info.max_model_len = 1 << 20
        async with serving(engine, byte_tokenizer(begin=True)) as (_, port):
            await ask(port, {"prompt": "é" * 5000})
            await ask(port, {"prompt": "é" * 5000, "add_special_tokens": False})
        spelled = ids("é" * 5000)
        assert [engine.submitted[i].prompt_ids for i in range(2)] == [[257, *spelled], spelled]

    run(test())


REFUSED = [
    ({"prompt": ""}, 400, "prompt", ["at least 1 token"]),
    ({"prompt": []}, 400, "prompt", ["at least one prompt"]),
    ({"prompt": [[]]}, 400, "prompt", ["at least 1 token"]),
    ({"prompt": ["a", ""]}, 400, "prompt", ["at least 1 token"]),
    ({}, 400, "prompt", ["missing"]),
    ({"prompt": None}, 400, "prompt", ["null"]),
    ({"prompt": 5}, 400, "prompt", ["5"]),
    ({"prompt": [True]}, 400, "prompt", ["true"]),
    ({"prompt": [1, "a"]}, 400, "prompt", ["item 0 is 1"]),
    ({"prompt": ["a", [1.5]]}, 400, "prompt", ["item 1", "1.5"]),
    ({"prompt": ["a"] * 257}, 400, "prompt", ["257", "256"]),
    ({"prompt": [VOCABULARY]}, 400, "prompt", [str(VOCABULARY), f"0 to {VOCABULARY - 1}"]),
    ({"prompt": [-1]}, 400, "prompt", ["-1"]),
    ({"prompt": [10**30]}, 400, "prompt", ["0 to"]),
    ({"prompt": "a" * CONTEXT}, 400, "prompt", [str(CONTEXT)]),
    ({"prompt": "a" * 5000}, 400, "prompt", ["5000", str(CONTEXT)]),
    (
        {"prompt": "aaa", "max_tokens": CONTEXT - 2},
        400,
        "max_tokens",
        [str(CONTEXT), str(CONTEXT - 2), "3 prompt"],
    ),
    ({"prompt": "a", "max_tokens": 0}, 400, "max_tokens", ["0", "at least 1"]),
    ({"prompt": "a" * CONTEXT, "max_tokens": 0, "echo": True}, 400, "prompt", [str(CONTEXT)]),
    ({"prompt": "a", "max_tokens": -5}, 400, "max_tokens", ["-5"]),
    ({"prompt": "a", "max_tokens": 10**400}, 400, "max_tokens", [str(CONTEXT)]),
    ({"prompt": "a", "max_tokens": "5"}, 400, "max_tokens", ['"5"', "integer"]),
    ({"prompt": "a", "max_tokens": 5.0}, 400, "max_tokens", ["5.0"]),
    ({"prompt": "a", "max_tokens": True}, 400, "max_tokens", ["true"]),
    ({"prompt": "a", "temperature": float("nan")}, 400, "temperature", ["NaN", "finite"]),
    ({"prompt": "a", "temperature": float("inf")}, 400, "temperature", ["Infinity"]),
    ({"prompt": "a", "temperature": -0.1}, 400, "temperature", ["-0.1", "0"]),
    ({"prompt": "a", "temperature": 2.5}, 400, "temperature", ["2.5", "2"]),
    ({"prompt": "a", "temperature": False}, 400, "temperature", ["false"]),
    ({"prompt": "a", "top_p": 0}, 400, "top_p", ["0"]),
    ({"prompt": "a", "top_k": -2}, 400, "top_k", ["-2", "-1"]),
    ({"prompt": "a", "seed": 1 << 63}, 400, "seed", [str(1 << 63)]),
    ({"prompt": "a", "stop": ""}, 400, "stop", ["0 characters"]),
    ({"prompt": "a", "stop": 5}, 400, "stop", ["5"]),
    ({"prompt": "a", "stop": ["a"] * 17}, 400, "stop", ["17", "16"]),
    ({"prompt": "a", "stop_token_ids": [VOCABULARY]}, 400, "stop_token_ids", [str(VOCABULARY)]),
    ({"prompt": "a", "stream": 1}, 400, "stream", ["1"]),
    ({"prompt": "a", "stream_options": {"include_usage": True}}, 400, None, ["stream_options"]),
    (
        {"prompt": "a", "stream": True, "stream_options": {"include_usage": 1}},
        400,
        "stream_options.include_usage",
        ["1"],
    ),
    ({"prompt": "a", "n": 0}, 400, "n", ["0", "1"]),
    ({"prompt": "a", "n": 65}, 400, "n", ["65", "64"]),
    ({"prompt": ["a"] * 17, "n": 64}, 400, "n", ["17 prompts", "1088", "1024"]),
    ({"prompt": "a", "best_of": 3}, 400, "best_of", ["3", "1"]),
    ({"prompt": "a", "best_of": 3, "n": 2}, 400, "best_of", ["3", "2"]),
    ({"prompt": "a", "logprobs": 21}, 400, "logprobs", ["21", "20"]),
    ({"prompt": "a", "logprobs": True}, 400, "logprobs", ["true"]),
    ({"prompt": "a", "top_logprobs": 2}, 400, "top_logprobs", ["2"]),
    ({"prompt": "a", "suffix": "b"}, 400, "suffix", ["b"]),
    ({"prompt": "a", "tools": [{"type": "function"}]}, 400, "tools", ["function"]),
    ({"prompt": "a", "response_format": {"type": "json_object"}}, 400, "response_format", ["json_object"]),
    ({"prompt": "a", "guided_regex": "a*"}, 400, "guided_regex", ["a*"]),
    ({"prompt": "a", "logit_bias": [5]}, 400, "logit_bias", ["object"]),
    ({"prompt": "a", "logit_bias": {"x": 1}}, 400, "logit_bias", ['"x"', "token id"]),
    ({"prompt": "a", "logit_bias": {"05": 1}}, 400, "logit_bias", ['"05"']),
    ({"prompt": "a", "logit_bias": {"-1": 1}}, 400, "logit_bias", ['"-1"']),
    ({"prompt": "a", "logit_bias": {"5": 100.5}}, 400, "logit_bias", ["100.5", "-100 to 100"]),
    ({"prompt": "a", "logit_bias": {"5": float("nan")}}, 400, "logit_bias", ["NaN"]),
    ({"prompt": "a", "logit_bias": {"5": True}}, 400, "logit_bias", ["true"]),
    ({"prompt": "a", "logit_bias": {str(VOCABULARY): 1}}, 400, "logit_bias", [str(VOCABULARY)]),
    ({"prompt": "a", "logit_bias": {str(i): 1 for i in range(301)}}, 400, "logit_bias", ["301", "300"]),
    ({"prompt": "a", "presence_penalty": 2.5}, 400, "presence_penalty", ["2.5", "2"]),
    ({"prompt": "a", "frequency_penalty": -2.5}, 400, "frequency_penalty", ["-2.5", "-2"]),
    ({"prompt": "a", "repetition_penalty": 0}, 400, "repetition_penalty", ["0"]),
    ({"prompt": "a", "min_tokens": -1}, 400, "min_tokens", ["-1"]),
    ({"prompt": "a", "min_tokens": 9, "max_tokens": 8}, 400, "min_tokens", ["9", "8"]),
    ({"prompt": "a", "min_tokens": 17}, 400, "min_tokens", ["17", "16"]),
    ({"prompt": "a", "priority": 1 << 31}, 400, "priority", [str(1 << 31)]),
    ({"prompt": "a", "cache_salt": ""}, 400, "cache_salt", ["1"]),
    ({"prompt": "a", "model": "gpt-4"}, 404, "model", ["gpt-4", MODEL]),
    ({"prompt": "a", "model": 4}, 400, "model", ["4"]),
    (b"", 400, None, ["JSON"]),
    (b"{", 400, None, ["JSON"]),
    (b"[]", 400, None, ["object"]),
    (b"\xff\xfe", 400, None, ["JSON"]),
    (b'{"prompt": "\xff"}', 400, None, ["JSON"]),
    (b'{"prompt": ' + b"[" * 100_000, 400, None, ["JSON"]),
    (b'{"prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}", 400, None, ["JSON"]),
]


def test_each_bad_request_is_refused_by_name_and_the_server_goes_on() -> None:
    async def test() -> None:
        async with serving(engine := answering("x")) as (_, port):
            peer = await Peer.connect(port)
            for content, status, param, mentions in REFUSED:
                peer.post(content)
                answer = await peer.answer()
                label = str(content)[:80]
                assert answer.status == status, label
                assert set(answer.error) == {"message", "type", "param", "code"}
                assert answer.error["param"] == param, label
                assert answer.error["type"] == (
                    "not_found_error" if status == 404 else "invalid_request_error"
                )
                for mention in mentions:
                    assert mention in answer.error["message"], label
                assert len(answer.error["message"]) < 400, label
            assert not engine.submitted
            peer.post({"prompt": "a"})
            assert (await peer.answer()).status == 200
            peer.close()

    run(test())


def test_fields_that_ask_for_nothing_and_unknown_ones_are_ignored() -> None:
    neutral = {
        "n": 1, "best_of": 1, "echo": False, "logprobs": False, "suffix": None, "presence_penalty": 0.0,
        "frequency_penalty": 0, "logit_bias": {}, "top_logprobs": 0, "tools": [],
        "response_format": {"type": "text"}, "user": "me", "frobnicate": {"a": 1},
    }  # fmt: skip

    async def test() -> None:
        async with serving(answering("x")) as (_, port):
            assert (await ask(port, {"prompt": "a"} | neutral)).status == 200

    run(test())


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_refuses_is_a_400_what_it_breaks_a_500_and_a_dead_engine_a_503(stream: bool) -> None:
    async def test() -> None:
        engine = FakeEngine()
        async with serving(engine) as (_, port):
            peer = await Peer.connect(port)
            peer.post({"prompt": "a", "stream": stream})
            await engine.until(lambda: bool(engine.running))
            engine.emit(0, [], "refused", "8 KV blocks are needed; there are 4")
            answer = await peer.answer()
            assert (answer.status, answer.error["message"]) == (400, "8 KV blocks are needed; there are 4")
            peer.post({"prompt": "a", "stream": stream})
            await engine.until(lambda: bool(engine.running))
            engine.emit(1, [], "error", "the model's logits were not finite")
            answer = await peer.answer()
            assert (answer.status, answer.error["message"]) == (500, "the model's logits were not finite")
            peer.post({"prompt": "a", "stream": stream})
            await engine.until(lambda: bool(engine.running))
            engine.fail("the engine process ended")
            answer = await peer.answer()
            assert (answer.status, answer.error["type"]) == (503, "server_error")
            peer.post({"prompt": "a", "stream": stream})
            answer = await peer.answer()
            assert (answer.status, answer.error["message"]) == (503, "the engine process ended")
            peer.close()

    run(test())


def test_an_engine_that_fails_within_a_stream_ends_it_with_one_error() -> None:
    async def test() -> None:
        engine = FakeEngine()
        async with serving(engine) as (_, port):
            peer = await Peer.connect(port)
            peer.post({"prompt": ["a", "b"], "stream": True})
            await engine.until(lambda: len(engine.running) == 2)
            engine.emit(0, ids("x"))
            engine.emit(1, ids("y"))
            await asyncio.sleep(0)
            engine.fail("out of memory")
            answer = await peer.answer()
            peer.close()
        assert answer.status == 200
        *events, last = answer.events
        assert [event["choices"][0]["text"] for event in events] == ["x", "y"]
        assert last == {
            "error": {"message": "out of memory", "type": "server_error", "param": None, "code": None}
        }

    run(test())


def test_a_stream_and_a_plain_request_share_a_connection() -> None:
    async def test() -> None:
        async with serving(answering("abc")) as (_, port):
            peer = await Peer.connect(port)
            for stream in (True, False, True):
                peer.post({"prompt": "a", "stream": stream})
            first, second, third = [await peer.answer() for _ in range(3)]
            assert first.events[-1] == third.events[-1] == "[DONE]"
            assert second.json["choices"][0]["text"] == "abc"
            peer.close()

    run(test())


def test_a_peer_that_is_behind_gets_merged_events_with_all_text_and_right_usage() -> None:
    tokens, text = 200_000, ids("0123456789")

    async def test() -> None:
        engine = FakeEngine()
        engine.info.max_model_len = 1 << 20
        async with serving(engine) as (server, port):
            peer = await Peer.connect(port, buffer=1 << 12)
            options = {"include_usage": True, "continuous_usage_stats": True}
            peer.post({"prompt": "a", "max_tokens": tokens, "stream": True, "stream_options": options})
            await engine.until(lambda: bool(engine.running))
            for at in range(tokens):
                engine.emit(0, [text[at % 10]], "length" if at == tokens - 1 else None)
                if at % 1000 == 0:
                    await asyncio.sleep(0)
            [connection] = server._connections
            assert connection._transport.get_write_buffer_size() < 1 << 17, (
                "memory is bounded while the peer sleeps"
            )
            answer = await peer.answer()
            peer.close()
        *events, final, done = answer.events
        assert done == "[DONE]"
        assert len(events) < tokens
        shown = 0
        for event in events:
            shown += len(event["choices"][0]["text"])
            assert event["usage"]["completion_tokens"] == shown
        assert "".join(event["choices"][0]["text"] for event in events) == "0123456789" * (tokens // 10)
        assert final["usage"]["completion_tokens"] == tokens
        assert events[-1]["choices"][0]["finish_reason"] == "length"

    run(test())


@pytest.mark.parametrize("goodbye", ["close", "reset"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("started", [False, True])
def test_a_peer_that_leaves_cancels_its_requests(stream: bool, goodbye: str, started: bool) -> None:
    async def test() -> None:
        engine = FakeEngine()
        async with serving(engine) as (server, port):
            peer = await Peer.connect(port)
            peer.post({"prompt": ["a", "b"], "stream": stream})
            await engine.until(lambda: len(engine.running) == 2)
            if started:
                engine.emit(0, ids("x"))
            if started and stream:
                await peer.reader.readuntil(b"}\n\n")
            getattr(peer, goodbye)()
            await engine.until(lambda: sorted(engine.cancelled) == [0, 1])
            assert not server._intake.shared.under_way

    run(test())


def test_a_peer_that_leaves_while_it_is_behind_cancels_its_request() -> None:
    async def test() -> None:
        engine = FakeEngine()
        engine.info.max_model_len = 1 << 20
        async with serving(engine) as (server, port):
            peer = await Peer.connect(port, buffer=1 << 12)
            peer.post({"prompt": "a", "max_tokens": 1 << 19, "stream": True})
            await engine.until(lambda: bool(engine.running))
            [connection] = server._connections
            while not connection.paused:
                for _ in range(100):
                    engine.emit(0, ids("x"))
                await asyncio.sleep(0)
            peer.reset()
            await engine.until(lambda: engine.cancelled == [0])

    run(test())


def test_the_answer_of_a_request_is_json_even_for_awkward_text() -> None:
    awkward = 'quote " backslash \\ newline \n tab \t null \x00 \u2028 😀'

    async def test() -> None:
        async with serving(answering(awkward)) as (_, port):
            plain = await ask(port, {"prompt": "a", "max_tokens": 100})
            stream = await ask(port, {"prompt": "a", "max_tokens": 100, "stream": True})
        assert plain.json["choices"][0]["text"] == awkward
        assert "".join(event["choices"][0]["text"] for event in stream.events[:-1]) == awkward
        assert TOKENIZER.decode(ids(awkward)) == awkward

    run(test())


def test_bodies_are_not_kept_while_an_answer_is_generated() -> None:
    async def test() -> None:
        engine = FakeEngine()
        async with serving(engine) as (server, port):
            peer = await Peer.connect(port)
            peer.post(json.dumps({"prompt": "a", "filler": "b" * 100_000}).encode())
            await engine.until(lambda: bool(engine.running))
            [connection] = server._connections
            assert connection.exchange.request.body == b""
            peer.close()

    run(test())
