"""Log probabilities beside the text they belong to, streamed and plain, whatever is held back.

Fault met here: a stop string's hold-back that shifts the text against ids and log probabilities
(vLLM PR#45636).
"""

from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models

from engine.serving.http.chat_template import ChatTemplate
from engine.serving.http.logprobs import LOWEST, TokenNames, chat_logprobs, completion_logprobs
from engine.serving.http.timeline import Timeline, Token
from engine.serving.request import TokenLogprobs
from tests.engine.serving.http.fake_engine import (
    CONTEXT,
    END,
    TOKENIZER,
    VOCABULARY,
    Answer,
    FakeEngine,
    ask,
    ids,
    run,
    serving,
)

CHAT = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
TEXTS = {
    "plain": ("abc", None, "abc"),
    "characters of several tokens": ("né 😀!", None, "né 😀!"),
    "text held back for nothing": ("a ST b STO é", "STOP", "a ST b STO é"),
    "a stop string": ("é one STOP", " STOP", "é one"),
    "a stop string after a hold-back": ("STSTOP", "STOP", "ST"),
}


def joined(names: list[str]) -> bytes:
    """The bytes of tokens by their names in the API."""
    return b"".join(
        bytes.fromhex(name.removeprefix("bytes:").replace("\\x", ""))
        if name.startswith("bytes:")
        else name.encode()
        for name in names
    )


def parts(answer: Answer) -> list[dict[str, Any]]:
    """The first choice of each event, or of the body."""
    stream = answer.headers["content-type"].startswith("text/event-stream")
    return [event["choices"][0] for event in (answer.events[:-1] if stream else [answer.json])]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", TEXTS)
def test_completions_tell_of_each_token_with_its_text(case: str, stream: bool) -> None:
    generated, stop, shown = TEXTS[case]

    async def test() -> None:
        async with serving(FakeEngine(answer=lambda _: [*ids(generated), END])) as (_, port):
            answer = await ask(
                port,
                {"prompt": "x", "max_tokens": 40, "logprobs": 2, "stop": stop, "stream": stream,
                 "return_token_ids": True},
            )  # fmt: skip
        got = parts(answer)
        assert "".join(part["text"] for part in got) == shown
        text = ""
        names, offsets, logprobs, token_ids = [], [], [], []
        for part in got:
            text += part["text"]
            token_ids += part["token_ids"]
            if told := part["logprobs"]:
                names += told["tokens"]
                offsets += told["text_offset"]
                logprobs += told["token_logprobs"]
                assert all(len(best) == 3 for best in told["top_logprobs"])
            if part["finish_reason"] is None:
                assert joined(names) == text.encode(), "tokens and text come together"
        expected = ids(generated) + [END] * (stop is None or stop not in generated)
        assert token_ids == expected, "one id for each counted token"
        assert logprobs == [-id / 8 for id in expected]
        assert len(names) == len(offsets) == len(expected)
        assert offsets == sorted(offsets) and offsets[-1] <= len(shown)
        for name, start, end in zip(names, offsets, [*offsets[1:], len(shown)], strict=True):
            if not name.startswith("bytes:") and start < len(shown):
                assert shown[start:end] == name

    run(test())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", TEXTS)
def test_chat_tells_of_each_token_with_its_text(case: str, stream: bool) -> None:
    generated, stop, shown = TEXTS[case]
    messages = [{"role": "user", "content": "x"}]

    async def test() -> None:
        async with serving(FakeEngine(answer=lambda _: ids(generated)), chat_template=CHAT) as (_, port):
            answer = await ask(
                port,
                {"messages": messages, "max_tokens": len(ids(generated)), "logprobs": True, "top_logprobs": 2,
                 "stop": stop, "stream": stream},
                "/v1/chat/completions",
            )  # fmt: skip
        text, spelled, content = "", b"", []
        for part in parts(answer):
            text += part["delta" if stream else "message"]["content"]
            entries = part["logprobs"]["content"] if part["logprobs"] else []
            spelled += b"".join(bytes(entry["bytes"]) for entry in entries)
            content += entries
            if part["finish_reason"] is None:
                assert spelled == text.encode()
        assert text == shown and spelled == generated.encode()
        for entry, id in zip(content, ids(generated), strict=True):
            assert entry["logprob"] == -id / 8
            assert [best["logprob"] for best in entry["top_logprobs"]] == [-0.125, -1.125]

    run(test())


def test_names_of_tokens_and_their_alternatives() -> None:
    async def test() -> None:
        answered = [*ids("é"), VOCABULARY - 1, END]
        async with serving(FakeEngine(answer=lambda _: answered), chat_template=CHAT) as (_, port):
            completion = await ask(port, {"prompt": "x", "logprobs": 0})
            chat = await ask(
                port,
                {"messages": [{"role": "user", "content": "x"}], "logprobs": True},
                "/v1/chat/completions",
            )
        told = completion.json["choices"][0]["logprobs"]
        assert told["tokens"] == ["bytes:\\xc3", "bytes:\\xa9", f"token_id:{VOCABULARY - 1}", "<|end|>"]
        assert told["text_offset"] == [0, 0, 1, 1]
        assert told["top_logprobs"][3] == {"<|end|>": -END / 8}
        entries = chat.json["choices"][0]["logprobs"]["content"]
        assert [entry["bytes"] for entry in entries] == [[0xC3], [0xA9], None, list(b"<|end|>")]
        assert [entry["top_logprobs"] for entry in entries] == [[]] * 4

    run(test())


def test_no_answer_tells_of_log_probabilities_unasked() -> None:
    async def test() -> None:
        async with serving(FakeEngine(answer=lambda _: ids("ab"))) as (_, port):
            for stream in (False, True):
                answer = await ask(port, {"prompt": "x", "stream": stream, "max_tokens": 2})
                assert [part["logprobs"] for part in parts(answer)] == [None] * (2 if stream else 1)

    run(test())


@pytest.mark.parametrize("stream", [False, True])
def test_echo_precedes_the_answer(stream: bool) -> None:
    async def test() -> None:
        async with serving(FakeEngine(answer=lambda _: ids("yz"))) as (_, port):
            for prompt in ("STOP é", ids("STOP é")):
                answer = await ask(
                    port,
                    {"prompt": prompt, "max_tokens": 2, "echo": True, "stop": "STOP", "stream": stream,
                     "return_token_ids": True},
                )  # fmt: skip
                got = parts(answer)
                assert "".join(part["text"] for part in got) == "STOP éyz", (
                    "stop strings are the answer's alone"
                )
                assert got[0]["prompt_token_ids"] == ids("STOP é")
                assert [id for part in got for id in part["token_ids"]] == ids("yz")
                assert not any(part["logprobs"] for part in got)

    run(test())


def test_a_character_begun_by_the_prompt_and_ended_by_the_answer() -> None:
    first, last = ids("é")

    async def test() -> None:
        async with serving(FakeEngine(answer=lambda _: [last])) as (_, port):
            answer = await ask(port, {"prompt": [first], "max_tokens": 1, "echo": True, "logprobs": 0})
        assert answer.json["choices"][0]["text"] == "é"
        assert answer.json["choices"][0]["logprobs"]["token_logprobs"] == [None, -last / 8]

    run(test())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("max_tokens", [0, 1])
def test_a_prompt_is_scored(max_tokens: int, stream: bool) -> None:
    prompt = "né!"

    async def test() -> None:
        engine = FakeEngine(answer=lambda _: ids("y"))
        async with serving(engine) as (_, port):
            answer = await ask(
                port,
                {"prompt": prompt, "max_tokens": max_tokens, "echo": True, "logprobs": 1, "stream": stream,
                 "stream_options": {"include_usage": True} if stream else None},
            )  # fmt: skip
        events = answer.events[:-1] if stream else [answer.json]
        [choice] = [choice for event in events for choice in event["choices"]]
        told = choice["logprobs"]
        assert choice["text"] == prompt + "y" * max_tokens
        assert choice["finish_reason"] == "length"
        expected = ids(prompt + "y" * max_tokens)
        assert told["token_logprobs"] == [None, *(-id / 8 for id in expected[1:])]
        assert told["top_logprobs"][0] is None
        assert told["text_offset"] == [0, 1, 1, 2, 3][: len(expected)]
        assert joined(told["tokens"]).decode() == choice["text"]
        assert events[-1]["usage"]["completion_tokens"] == max_tokens
        params = engine.submitted[0].params
        assert (params.max_tokens, params.prompt_logprobs) == (1, 1)

    run(test())


def test_a_prompt_of_one_token_and_the_longest_can_be_scored() -> None:
    async def test() -> None:
        async with serving(FakeEngine(answer=lambda _: [END])) as (_, port):
            for length in (1, CONTEXT - 1):
                answer = await ask(
                    port, {"prompt": "a" * length, "max_tokens": 0, "echo": True, "logprobs": 0}
                )
                assert len(answer.json["choices"][0]["logprobs"]["tokens"]) == length
                assert answer.json["choices"][0]["text"] == "a" * length

    run(test())


def test_minus_infinity_is_valid_json() -> None:
    names = TokenNames(TOKENIZER)
    token = Token(5, 0, True, TokenLogprobs(float("-inf"), (6,), (float("-inf"),)))
    told = completion_logprobs(names, [token], 1, 1)
    assert told["token_logprobs"] == [LOWEST]
    assert set(told["top_logprobs"][0].values()) == {LOWEST}
    assert chat_logprobs(names, [token], 1, 1)["content"][0]["logprob"] == LOWEST


def test_names_in_a_sentencepiece_vocabulary() -> None:
    vocab = {"<unk>": 0, "<0xE2>": 1, "▁the": 2, "é": 3}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["</s>"])
    names = TokenNames(tokenizer)
    assert [names[i][0] for i in range(6)] == ["<unk>", "bytes:\\xe2", " the", "é", "</s>", "token_id:5"]
    assert names[3][1] == list("é".encode())


def test_tokens_without_text_wait_for_the_text_they_begin() -> None:
    timeline = Timeline()
    timeline.add(1, "ab")
    timeline.add(2, "")
    timeline.add(3, "é")
    timeline.add(4, "")
    assert [token.id for token in timeline.take(1, ended=False)] == []
    assert [token.id for token in timeline.take(2, ended=False)] == [1]
    assert [token.id for token in timeline.take(2, ended=False)] == []
    assert [(token.id, token.start) for token in timeline.take(3, ended=False)] == [(2, 2), (3, 2)]
    assert [token.id for token in timeline.take(3, ended=True)] == [4]
