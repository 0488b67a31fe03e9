"""What cannot be served is refused before it is tried, with the value and the limit."""

from pathlib import Path

import pytest
import torch

from engine.__main__ import main
from engine.config import ConfigError
from engine.serving import startup
from engine.serving.startup import EngineOptions, load_engine
from tests.engine.oracle import tiny_config, write_folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tiny_config(), tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_model_len": 0}, "max_model_len is 0; the model allows 2 … 256"),
        ({"max_model_len": 257}, "max_model_len is 257; the model allows 2 … 256"),
        (
            {"kv_cache_bytes": 10**17},
            "100,000,000,000,000,000 bytes of KV cache; .* bytes of cpu memory are free",
        ),
        ({"kv_cache_bytes": 100}, "100 bytes of KV cache hold no block; one takes 4,096 bytes"),
        ({"kv_cache_bytes": -1}, "-1 bytes of KV cache hold no block"),
        (
            {"kv_cache_bytes": 20480, "max_model_len": 256},
            "hold 64 tokens; max_model_len 256 needs 69,632 bytes",
        ),
        ({"gpu_memory_share": 2.0}, r"gpu_memory_share is 2.0; it lies in \(0, 1\]"),
        ({"gpu_memory_share": float("nan")}, "gpu_memory_share is nan"),
        ({"gpu_memory_share": 0.5}, "gpu_memory_share is 0.5, but the device is 'cpu'"),
        ({"dtype": "int8"}, "dtype is 'int8'; known: float32, bfloat16, float64"),
        ({"device": "tpu"}, "device is 'tpu'; known: cpu, cuda"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0; at least 1"),
        ({"max_batched_tokens": 8, "max_num_seqs": 9}, "max_batched_tokens is 8, fewer than max_num_seqs 9"),
    ],
)
def test_bad_sizes_are_refused(model: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_engine(EngineOptions(model=model, **({"device": "cpu"} | options)))


def test_weights_larger_than_the_memory_are_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "_memory", lambda device: (1000, 2000))
    with pytest.raises(
        ConfigError, match=r"the weights take [\d,]{6,} bytes as float32; 1,000 of 2,000 bytes of cpu"
    ):
        load_engine(EngineOptions(model=model, device="cpu"))


@pytest.mark.parametrize("capability", [(7, 5), (6, 1)])
def test_a_gpu_without_bfloat16_is_refused(
    model: Path, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    name = "sm_{}{}".format(*capability)
    with pytest.raises(ConfigError, match=f"this GPU is {name}; bfloat16 needs sm_80 or newer"):
        load_engine(EngineOptions(model=model, device="cuda"))


def test_a_small_cache_shortens_the_context_unless_one_was_asked_for(model: Path) -> None:
    engine = load_engine(EngineOptions(model=model, device="cpu", kv_cache_bytes=20480))
    assert engine.config.max_model_len == 64


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "tokenizer.json: no such file"), ('{"bad', "tokenizer.json: not a readable tokenizer")],
)
def test_a_model_without_a_readable_tokenizer_ends_with_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, message: str
) -> None:
    folder = write_folder(tiny_config(), tmp_path)
    if content is not None:
        (folder / "tokenizer.json").write_text(content)
    for command in (["serve", "--port", "0", "--model"], ["prepare"]):
        assert main([*command, str(folder)]) == 2
        assert message in capsys.readouterr().err


def test_an_empty_model_name_is_no_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", ""]) == 2
    assert "the model's name is empty" in capsys.readouterr().err


def test_a_tokenizer_config_that_is_not_json_is_named(tmp_path: Path) -> None:
    from engine.serving.http.chat_template import ChatTemplate

    (tmp_path / "tokenizer_config.json").write_text("{bad")
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json: not valid JSON"):
        ChatTemplate.load(tmp_path)
