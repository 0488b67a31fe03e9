"""The soak: what it takes for wrong, and a short one against the engine."""

import csv
from pathlib import Path

import pytest

from harness.micro import soak
from harness.micro.soak import Wrong, checked, grown, main
from tests.engine.oracle import tiny_config, write_folder
from tests.engine.serving.http.fake_engine import TOKENIZER

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"
USAGE = b'data: {"usage":{"prompt_tokens":2,"completion_tokens":7}}\n\n'
STREAM = {"stream": True, "max_tokens": 7}


@pytest.mark.parametrize(
    ("answer", "body", "tokens", "end"),
    [
        (HEAD + USAGE + b"data: [DONE]\n\n", STREAM, 7, "complete"),
        (HEAD + b'{"usage": {"completion_tokens": 7}}', {"max_tokens": 7}, 7, "complete"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", {"max_tokens": 9999}, 0, "refused"),
        (b"HTTP/1.1 429 Too Many Requests\r\n\r\n", STREAM, 7, "queue full"),
    ],
)
def test_how_requests_may_end(answer: bytes, body: dict[str, object], tokens: int, end: str) -> None:
    assert checked(answer, body, tokens) == end


@pytest.mark.parametrize(
    ("answer", "body", "tokens", "said"),
    [
        (b"", STREAM, 7, "status 0"),
        (b"HTTP/1.1 500 Internal Server Error\r\n\r\n", STREAM, 7, "status 500"),
        (HEAD + USAGE, STREAM, 7, "a stream without its end"),
        (HEAD + USAGE + b"data: [DONE]\n\n", STREAM, 8, "7 tokens instead of 8"),
        (HEAD + b'{"usage": {"completion_tokens": 6}}', {"max_tokens": 7}, 7, "6 tokens instead of 7"),
        (HEAD, {"max_tokens": 9999}, 0, "status 200 for 9999 tokens"),
    ],
)
def test_other_answers_are_wrong(answer: bytes, body: dict[str, object], tokens: int, said: str) -> None:
    with pytest.raises(Wrong, match=said):
        checked(answer, body, tokens)


def rows(*sizes: float, gpu: float = 0.0) -> list[dict[str, object]]:
    return [{"process": "engine 1", "rss_mib": size, "gpu_mib": gpu} for size in sizes]


def test_memory_may_warm_up_but_not_grow() -> None:
    assert grown(rows(100, 200, 400, 400, 410, 400, 405, 410)) == []
    assert grown(rows(100, 100, 400, 400, 410, 420, 430, 440)) == ["engine 1 grew from 400 to 435 MiB"]
    assert grown(rows(*[4000] * 6, 4070, 4070)) == []  # 2 % of it would be 80
    assert "3 rows, too few" in grown(rows(1, 1, 1))[0]
    leaking = [row | {"gpu_mib": 1000.0 + 50 * i} for i, row in enumerate(rows(*[10] * 8))]
    assert grown(leaking) == ["the GPU grew from 1125 to 1325 MiB"]


def test_a_short_soak_of_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "ROW_SECONDS", 0.25)
    model = write_folder(tiny_config(vocab_size=258, max_position_embeddings=512), tmp_path)
    TOKENIZER.save(str(model / "tokenizer.json"))
    wanted = ["--model", str(model), "--vocabulary", "60", "--seconds", "3", "--concurrency", "6"]
    assert (
        main([*wanted, "--out", str(tmp_path), "--", "--kv-cache-bytes", "20000000", "--device", "cpu"]) == 0
    )
    with (tmp_path / "soak.csv").open(newline="") as file:
        last = list(csv.DictReader(file))[-1]
    assert int(last["complete"]) > 0 and int(last["given up"]) > 0
    assert "--vocabulary 60" in last["command"]
