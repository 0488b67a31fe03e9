import json

import pytest

from harness.errors import BadInput
from harness.systems import SYSTEMS, choose
from harness.systems.openai import served_model
from harness.systems.process import free_port
from tests.harness.systems.served import answering


def models(*names: str) -> tuple[int, bytes]:
    return 200, json.dumps({"object": "list", "data": [{"id": name} for name in names]}).encode()


@pytest.mark.parametrize(
    ("text", "url", "configuration"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000", "127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000", "127.0.0.1:8000"),
        ("http://box", "http://box:80", "box:80"),
        ("http://box:9/serve/a/v1", "http://box:9/serve/a", "box:9.serve.a"),
    ],
)
def test_a_url_is_a_system_of_its_own(text, url, configuration):
    system, name = choose(text)
    assert (system.name, system.url, name) == ("openai", url, configuration)
    assert set(system.configurations) == {configuration}
    assert {"cpu", "cuda"} == system.devices
    assert system.counters == {}


def test_only_systems_given_by_url_have_one():
    assert all(system.url is None for system in SYSTEMS.values())
    assert "openai" not in SYSTEMS


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("https://api.example.com", "must have the form http://HOST"),
        ("http://user@box:8000", "must have the form http://HOST"),
        ("http://box:8000?x=1", "must have the form http://HOST"),
        ("http://", "must have the form http://HOST"),
        ("http://box:port", "port"),
    ],
)
def test_another_url_is_refused_by_name(text, reason):
    with pytest.raises(BadInput) as refused:
        choose(text)
    assert text in str(refused.value) and reason in str(refused.value)


def test_the_only_model_of_a_server_is_the_one():
    with answering({"/v1/models": models("smollm2")}) as url:
        assert served_model(url) == "smollm2"
        assert served_model(url, "smollm2") == "smollm2"
        with pytest.raises(BadInput, match=f"{url} serves smollm2, not 'llama'"):
            served_model(url, "llama")


def test_models_are_asked_for_below_the_prefix():
    with answering({"/a/b/v1/models": models("m")}) as url:
        assert served_model(choose(f"{url}/a/b/v1")[0].url) == "m"


def test_several_models_need_a_choice():
    with answering({"/v1/models": models("a", "b")}) as url:
        with pytest.raises(BadInput, match=r"serves a, b; choose one with --model"):
            served_model(url)
        assert served_model(url, "b") == "b"


@pytest.mark.parametrize(
    "answer",
    [
        (404, b'{"detail": "Not Found"}'),
        (401, b"who?"),
        (200, b"hello"),
        (200, b'{"data": [1]}'),
        (200, b"[]"),
    ],
)
def test_a_server_without_a_list_of_models_needs_a_name(answer):
    with answering({"/v1/models": answer}) as url:
        with pytest.raises(
            BadInput, match=rf"GET {url}/v1/models: status {answer[0]} .* name one with --model"
        ):
            served_model(url)
        assert served_model(url, "m") == "m"


def test_a_server_that_serves_nothing_is_no_server():
    with answering({"/v1/models": models()}) as url, pytest.raises(BadInput, match="serves no model"):
        served_model(url)


def test_an_address_where_nobody_listens_is_named():
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(BadInput, match=f"{url} does not answer: .*refused"):
        served_model(url, "m")
