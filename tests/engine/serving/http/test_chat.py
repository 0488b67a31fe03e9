"""/v1/chat/completions: templates rendered as transformers renders them, messages refused by name."""

import json
from pathlib import Path

import pytest

from engine.config import ConfigError
from engine.model.named import prepare
from engine.serving.http.chat_template import ChatTemplate
from tests.engine.serving.http.fake_engine import (
    CONTEXT,
    END,
    MODEL,
    FakeEngine,
    ask,
    byte_tokenizer,
    ids,
    run,
    serving,
)

PLAIN = ChatTemplate("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}")
STRICT = ChatTemplate("{{ raise_exception('roles must alternate') }}")
CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": 'What is "é" & <b>?'},
    {"role": "assistant", "content": " A letter.\n"},
    {"role": "user", "content": "And 😀?"},
]
TEMPLATES = [
    "{{ bos_token }}{% for m in messages %}{% if loop.index0 == 2 %}{% continue %}{% endif %}\n"
    "   {% set text = m['content'] | trim %}\n{{ m.role + ': ' + text }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}",
    "{% for m in messages %}{{ m | tojson }}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}"
    "{{ ns.n }}{{ tools }}",
    "{{ strftime_now('%Y') }}{{ messages | map(attribute='role') | join(',') }}",
]


def rendered_by_transformers(source: str, **tokens: str) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    texts, _ = render_jinja_template(
        [CONVERSATION], chat_template=source, add_generation_prompt=True, tools=None, documents=None, **tokens
    )
    return texts[0]


@pytest.mark.parametrize("source", TEMPLATES)
def test_templates_render_as_transformers_does(source: str) -> None:
    tokens = {"bos_token": "<s>"}
    assert ChatTemplate(source, tokens).render(CONVERSATION) == rendered_by_transformers(source, **tokens)


def test_the_template_of_a_checkpoint() -> None:
    folder = prepare("smollm2-135m")
    source = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    text = ChatTemplate.load(folder).render(CONVERSATION)
    assert text == rendered_by_transformers(source)
    assert text.endswith("<|im_start|>assistant\n")


def test_where_templates_are_found(tmp_path: Path) -> None:
    def config(**content: object) -> None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(content))

    assert ChatTemplate.load(tmp_path) is None
    config(chat_template=[{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}])
    assert ChatTemplate.load(tmp_path).render([]) == "d"
    config(bos_token={"content": "<b>"}, eos_token="</b>", chat_template="never read")
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ eos_token }}")
    assert ChatTemplate.load(tmp_path).render([]) == "<b></b>"
    with pytest.raises(ConfigError, match="chat template"):
        ChatTemplate("{% for %}")


def test_a_template_cannot_leave_its_sandbox() -> None:
    async def test() -> None:
        template = ChatTemplate("{{ ''.__class__.__mro__[1].__subclasses__() }}")
        async with serving(FakeEngine(), chat_template=template) as (_, port):
            answer = await ask(port, {"messages": CONVERSATION}, "/v1/chat/completions")
        assert (answer.status, answer.error["param"]) == (400, "messages")

    run(test())


def test_a_chat_answer_and_its_prompt() -> None:
    async def test() -> None:
        engine = FakeEngine(answer=lambda _: [*ids("Hé"), END])
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        messages = [{"role": "user", "content": parts, "name": "me"}, {"role": "assistant", "content": None}]
        async with serving(engine, byte_tokenizer(begin=True), PLAIN) as (_, port):
            answer = await ask(
                port, {"messages": messages, "max_completion_tokens": 9}, "/v1/chat/completions"
            )
            await ask(port, {"messages": messages}, "/v1/chat/completions")
        assert answer.json["object"] == "chat.completion"
        assert answer.json["choices"] == [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hé"},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ]
        prompt = ids("[user]a\nb[assistant]")
        assert engine.submitted[0].prompt_ids == prompt, "the template alone sets special tokens"
        assert [engine.submitted[i].params.max_tokens for i in range(2)] == [9, CONTEXT - len(prompt)]

    run(test())


def test_messages_are_refused_by_name() -> None:
    user = {"role": "user", "content": "a"}
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}
    refused = [
        ({}, "messages", "missing"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": "a"}, "messages", "array"),
        ({"messages": [{"content": "a"}]}, "messages.0.role", "missing"),
        ({"messages": [user, {"role": "user", "content": 5}]}, "messages.1.content", "string"),
        ({"messages": [image]}, "messages.0.content", "text"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages.0", "tools"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages.0", "tools"),
        ({"messages": [user], "tools": [{"type": "function"}]}, "tools", "function"),
        ({"messages": [user], "logprobs": 5}, "logprobs", "5"),
        ({"messages": [user], "top_logprobs": 2}, "top_logprobs", "logprobs: true"),
        ({"messages": [user], "logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
        ({"messages": [user], "echo": True}, "echo", "true"),
        ({"messages": [user], "n": 65}, "n", "64"),
        ({"messages": [user], "max_completion_tokens": CONTEXT}, "max_tokens", str(CONTEXT)),
        ({"messages": [{"role": "user", "content": "a" * CONTEXT}]}, "messages", str(CONTEXT)),
    ]

    async def test() -> None:
        async with serving(FakeEngine(), chat_template=PLAIN) as (_, port):
            for content, param, mention in refused:
                answer = await ask(port, content, "/v1/chat/completions")
                assert answer.status == 400, content
                assert answer.error["param"].startswith(param), content
                assert mention in answer.error["message"], content
        async with serving(FakeEngine(), chat_template=STRICT) as (_, port):
            answer = await ask(port, {"messages": [user]}, "/v1/chat/completions")
            assert "roles must alternate" in answer.error["message"]
        async with serving(FakeEngine()) as (_, port):
            answer = await ask(port, {"messages": [user]}, "/v1/chat/completions")
            assert MODEL in answer.error["message"]
            assert "no chat template" in answer.error["message"]

    run(test())
