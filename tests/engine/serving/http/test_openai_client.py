"""The official client against the server: what it sends is accepted, what comes back it understands."""

import asyncio

import openai
import pytest

from engine.serving.http.chat_template import ChatTemplate
from tests.engine.serving.http.fake_engine import END, MODEL, FakeEngine, ids, run, serving

TEXT = "Hello, wörld 😀"
TEMPLATE = ChatTemplate("{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}")


def client(port: int) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="unused", max_retries=0)


def engine() -> FakeEngine:
    return FakeEngine(answer=lambda _: [*ids(TEXT), END])


def test_plain_completions() -> None:
    async def test() -> None:
        async with serving(engine()) as (_, port), client(port) as api:
            one = await api.completions.create(
                model=MODEL, prompt="Hi", max_tokens=50, temperature=0, stop=["\n\n"]
            )
            two = await api.completions.create(model=MODEL, prompt=["a", "b"], max_tokens=50, seed=1)
        assert (one.choices[0].text, one.choices[0].finish_reason) == (TEXT, "stop")
        assert (
            one.usage.total_tokens
            == one.usage.prompt_tokens + one.usage.completion_tokens
            == 2 + len(ids(TEXT)) + 1
        )
        assert one.usage.prompt_tokens_details.cached_tokens == 0
        assert [choice.text for choice in two.choices] == [TEXT, TEXT]

    run(test())


def test_streamed_completions() -> None:
    async def test() -> None:
        async with serving(engine()) as (_, port), client(port) as api:
            stream = await api.completions.create(
                model=MODEL, prompt="Hi", max_tokens=50, stream=True, stream_options={"include_usage": True}
            )
            chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == TEXT
        assert chunks[-1].choices == []
        assert chunks[-1].usage.completion_tokens == len(ids(TEXT)) + 1

    run(test())


def test_the_synchronous_client() -> None:
    def talk(port: int) -> None:
        url = f"http://127.0.0.1:{port}/v1"
        with openai.OpenAI(base_url=url, api_key="unused", max_retries=0) as api:
            plain = api.completions.create(model=MODEL, prompt="Hi", max_tokens=50)
            stream = api.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "Hi"}], max_tokens=50, stream=True
            )
            said = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            with pytest.raises(openai.NotFoundError):
                api.completions.create(model="another", prompt="Hi")
        assert plain.choices[0].text == said == TEXT

    async def test() -> None:
        async with serving(engine(), chat_template=TEMPLATE) as (_, port):
            await asyncio.to_thread(talk, port)

    run(test())


def test_chat() -> None:
    messages = [{"role": "user", "content": "Hi"}]

    async def test() -> None:
        async with serving(double := engine(), chat_template=TEMPLATE) as (_, port), client(port) as api:
            plain = await api.chat.completions.create(model=MODEL, messages=messages)
            stream = await api.chat.completions.create(model=MODEL, messages=messages, stream=True)
            chunks = [chunk async for chunk in stream]
        assert double.submitted[0].prompt_ids == ids("user:Hi;")
        assert (plain.choices[0].message.role, plain.choices[0].message.content) == ("assistant", TEXT)
        assert plain.choices[0].finish_reason == chunks[-1].choices[0].finish_reason == "stop"
        assert "".join(chunk.choices[0].delta.content for chunk in chunks) == TEXT
        assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant"] + [None] * (len(chunks) - 1)
        assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}

    run(test())


def test_leaving_a_stream_cancels_the_request() -> None:
    async def test() -> None:
        double = FakeEngine()
        async with serving(double) as (_, port), client(port) as api:

            async def first_chunk() -> None:
                async with await api.completions.create(model=MODEL, prompt="Hi", stream=True) as stream:
                    async for chunk in stream:
                        assert chunk.choices[0].text == "x"
                        return

            task = asyncio.create_task(first_chunk())
            await double.until(lambda: bool(double.running))
            double.emit(0, ids("x"))
            await task
            await double.until(lambda: double.cancelled == [0])

    run(test())


def test_errors_are_the_clients_own() -> None:
    async def test() -> None:
        double = engine()
        async with serving(double) as (_, port), client(port) as api:
            with pytest.raises(openai.NotFoundError, match="no-such-model"):
                await api.completions.create(model="no-such-model", prompt="Hi")
            with pytest.raises(openai.BadRequestError) as refused:
                await api.completions.create(model=MODEL, prompt="Hi", n=2, best_of=3)
            assert refused.value.param == "best_of"
            double.answer = None
            stream = await started_stream(double, api)
            with pytest.raises(openai.APIError, match="out of memory"):
                async for _chunk in stream:
                    double.fail("out of memory")
            with pytest.raises(openai.InternalServerError):
                await api.completions.create(model=MODEL, prompt="Hi")

    async def started_stream(double: FakeEngine, api: openai.AsyncOpenAI) -> openai.AsyncStream:
        task = asyncio.create_task(api.completions.create(model=MODEL, prompt="Hi", stream=True))
        await double.until(lambda: bool(double.running))
        double.emit(max(double.running), ids("x"))
        return await task

    run(test())


def test_a_key_and_a_full_queue() -> None:
    async def test() -> None:
        async with serving(FakeEngine(), api_key="other") as (_, port), client(port) as api:
            with pytest.raises(openai.AuthenticationError):
                await api.models.list()
        full = serving(double := FakeEngine(), api_key="unused", max_queue=1)
        async with full as (_, port), client(port) as api:
            first = asyncio.create_task(api.completions.create(model=MODEL, prompt="Hi"))
            await double.until(lambda: bool(double.running))
            with pytest.raises(openai.RateLimitError):
                await api.completions.create(model=MODEL, prompt="Hi")
            double.emit(0, ids("x"), "length")
            assert (await first).choices[0].text == "x"

    run(test())


def test_models() -> None:
    async def test() -> None:
        async with serving(engine()) as (_, port), client(port) as api:
            assert [model.id async for model in api.models.list()] == [MODEL]
            assert (await api.models.retrieve(MODEL)).id == MODEL

    run(test())


def test_penalties_and_bias() -> None:
    async def test() -> None:
        async with serving(double := engine()) as (_, port), client(port) as api:
            await api.completions.create(
                model=MODEL,
                prompt="Hi",
                presence_penalty=0.5,
                frequency_penalty=-0.5,
                logit_bias={"7": -100, "8": 2},
                extra_body={"repetition_penalty": 1.5, "min_tokens": 2},
            )
        params = double.submitted[0].params
        assert (params.presence_penalty, params.frequency_penalty) == (0.5, -0.5)
        assert (params.repetition_penalty, params.min_tokens) == (1.5, 2)
        assert params.logit_bias == ((7, -100.0), (8, 2.0))

    run(test())


def test_n() -> None:
    async def test() -> None:
        async with serving(engine()) as (_, port), client(port) as api:
            plain = await api.completions.create(model=MODEL, prompt=["Hi", "a"], n=2, max_tokens=50)
            stream = await api.completions.create(model=MODEL, prompt="Hi", n=3, max_tokens=50, stream=True)
            texts = ["", "", ""]
            async for chunk in stream:
                for choice in chunk.choices:
                    texts[choice.index] += choice.text
        assert [(choice.index, choice.text) for choice in plain.choices] == [(i, TEXT) for i in range(4)]
        assert (plain.usage.prompt_tokens, plain.usage.completion_tokens) == (3, 4 * (len(ids(TEXT)) + 1))
        assert texts == [TEXT] * 3

    run(test())


def test_logprobs() -> None:
    async def test() -> None:
        async with serving(engine()) as (_, port), client(port) as api:
            plain = await api.completions.create(
                model=MODEL, prompt="Hi", max_tokens=50, logprobs=2, echo=True
            )
            stream = await api.completions.create(
                model=MODEL, prompt="Hi", max_tokens=50, logprobs=0, stream=True
            )
            streamed = [chunk.choices[0].logprobs async for chunk in stream]
        told = plain.choices[0].logprobs
        assert plain.choices[0].text == "Hi" + TEXT
        assert told.token_logprobs == [None, *(-id / 8 for id in [*ids("i" + TEXT), END])]
        assert told.text_offset[:4] == [0, 1, 2, 3]
        assert told.top_logprobs[0] is None and len(told.top_logprobs[1]) == 3
        tokens = [token for part in streamed if part for token in part.tokens]
        assert tokens == told.tokens[2:]

    run(test())


def test_chat_logprobs() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    question = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "logprobs": True}

    async def test() -> None:
        async with serving(engine(), chat_template=template) as (_, port), client(port) as api:
            plain = await api.chat.completions.create(**question, top_logprobs=2)
            stream = await api.chat.completions.create(**question, stream=True)
            chunks = [chunk.choices[0] async for chunk in stream]
        told = plain.choices[0].logprobs.content
        assert bytes(byte for entry in told for byte in entry.bytes).decode() == TEXT + "<|end|>"
        assert [entry.logprob for entry in told] == [-id / 8 for id in [*ids(TEXT), END]]
        assert [len(entry.top_logprobs) for entry in told] == [2] * len(told)
        streamed = [entry for choice in chunks if choice.logprobs for entry in choice.logprobs.content]
        assert [entry.token for entry in streamed] == [entry.token for entry in told]
        assert not any(entry.top_logprobs for entry in streamed)

    run(test())
