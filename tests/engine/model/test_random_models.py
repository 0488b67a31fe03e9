"""Random-weight models: the shapes of their names, the same bytes everywhere, a tokenizer of their size."""

import functools
import hashlib
import json
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from engine.config import ModelConfig, RopeScaling
from engine.model import random_models
from engine.model.checkpoint import load_checkpoint
from engine.model.gguf_file import open_gguf
from engine.model.gguf_tokenizer import tokenizer_of
from engine.model.named import packaged_gguf, prepare
from engine.model.random_models import SHAPES, Shape, random_model, random_tensor, resized_vocabulary
from tests.engine.model.made import byte_level_metadata

TINY = Shape(layers=2, hidden=64, heads=4, kv_heads=2, inner=96, vocab=600, context=128)
LLAMA_190M_SHA256 = "88c89c430df67067dbfe00fff19becacf2370b05259effa10a059539c11e4fbe"


@functools.cache
def vocabulary() -> dict[str, Any]:
    return open_gguf(packaged_gguf("smollm2-135m")).metadata


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama-190m", 190_741_248),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3.2-3b", 3_212_749_824),
        ("llama-3.1-8b", 8_030_261_248),
    ],
)
def test_shapes_have_the_published_sizes(name: str, parameters: int) -> None:
    model = random_model(name, SHAPES[name], vocabulary())
    assert sum(prod(shape) for shape in model.shapes.values()) == parameters
    config = ModelConfig.from_hf(dict(model.config_json))
    scaling = {"llama-3.2-1b": 32.0, "llama-3.2-3b": 32.0, "llama-3.1-8b": 8.0}.get(name)
    assert config.rope_scaling == (RopeScaling(scaling, 1.0, 4.0, 8192) if scaling else None)
    assert model.tokenizer.get_vocab_size() == config.vocab_size


def test_weights_depend_on_their_stream_only() -> None:
    tensor = random_tensor("0:some:matrix", (300, 301))
    assert tensor.dtype == torch.float32
    assert torch.equal(tensor, random_tensor("0:some:matrix", (300, 301)))
    assert not torch.equal(tensor, random_tensor("1:some:matrix", (300, 301)))
    digest = hashlib.sha256(tensor.numpy().tobytes()).hexdigest()
    assert digest == "fecc3e9d0bc90925fc3f2b60b20b6108eaf91d707d54d822e27de4549d3c171a"


def test_weights_are_spread_as_said() -> None:
    tensor = random_tensor("0:spread", (1000, 1000))
    assert abs(tensor.mean()) < 1e-4
    assert abs(tensor.std() - 0.02) < 1e-4
    assert tensor.abs().max() < 0.02 * 12**0.5
    rows = tensor - tensor.mean()
    assert abs((rows[:-1] * rows[1:]).mean()) / tensor.var() < 0.01
    assert torch.equal(random_tensor("0:norm", (5,)), torch.ones(5))


def test_a_chunk_border_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = random_tensor("0:chunks", (50, 50))
    monkeypatch.setattr(random_models, "CHUNK", 7)
    assert torch.equal(random_tensor("0:chunks", (50, 50)), whole)


@pytest.mark.parametrize("size", [300, 32000, 49152, 60000, 128256])
def test_the_tokenizer_has_exactly_the_size_and_reads_every_id(size: int) -> None:
    tokenizer = tokenizer_of(resized_vocabulary(vocabulary(), size))
    assert tokenizer.get_vocab_size() == size
    texts = tokenizer.decode_batch([[i] for i in range(size)], skip_special_tokens=False)
    assert all(texts)
    for text in ["The capital of France is Paris.", "x =  12\n\t345", "naïve 日本 🙂", "a<|im_end|>"]:
        ids = tokenizer.encode(text).ids
        assert max(ids) < size
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_a_larger_vocabulary_encodes_as_the_trained_one() -> None:
    trained, larger = (tokenizer_of(resized_vocabulary(vocabulary(), size)) for size in (49152, 60000))
    text = "In the beginning of the story of the theory, the other of the two was of the same kind."
    assert larger.encode(text).ids == trained.encode(text).ids


def test_the_source_vocabulary_is_specials_bytes_then_a_token_a_merge() -> None:
    tokens, merges = vocabulary()["tokenizer.ggml.tokens"], vocabulary()["tokenizer.ggml.merges"]
    assert tokens[len(tokens) - len(merges) :] == [merge.replace(" ", "") for merge in merges]


def test_prepared_as_any_other_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, "tiny", TINY)
    folder = prepare("tiny", tmp_path)
    assert folder.parent == tmp_path / "models"
    assert "random" in folder.name
    assert "random" in json.loads((folder / "config.json").read_text())["llm_ladder_weights"]
    checkpoint = load_checkpoint(folder)
    assert {tensor.dtype for tensor in checkpoint.tensors.values()} == {torch.bfloat16}
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for name, tensor in checkpoint.tensors.items():
        assert torch.equal(model.state_dict()[name], tensor.float())
    assert len(AutoTokenizer.from_pretrained(folder)) == 600
    again = prepare("tiny", tmp_path / "again")
    assert (again / "SHA256SUMS").read_bytes() == (folder / "SHA256SUMS").read_bytes()


def test_two_names_of_one_shape_differ() -> None:
    small = replace(TINY, vocab=300)
    one, two = (random_model(name, small, byte_level_metadata(320)) for name in ("one", "two"))
    name = "model.embed_tokens.weight"
    assert not torch.equal(one.tensor_of(name), two.tensor_of(name))


@pytest.mark.slow
def test_llama_190m_is_the_pinned_one(tmp_path: Path) -> None:
    assert load_checkpoint(prepare("llama-190m", tmp_path)).sha256["model.safetensors"] == LLAMA_190M_SHA256
