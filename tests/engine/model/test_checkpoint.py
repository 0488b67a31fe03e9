"""HuggingFace folders: loaded whole and exact, or refused by name."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import ConfigError
from engine.model.checkpoint import CheckpointError, load_checkpoint
from tests.engine.model.made import SHAPES, random_llama


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return saved(tmp_path / "model", num_key_value_heads=2)


def saved(folder: Path, shard_size: str = "1GB", **changes: object) -> Path:
    random_llama(**changes).save_pretrained(folder, max_shard_size=shard_size)
    return folder


def change_json(path: Path, **fields: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_read_exactly(shape: str, tmp_path: Path) -> None:
    model = random_llama(**SHAPES[shape])
    model.save_pretrained(tmp_path)
    checkpoint = load_checkpoint(tmp_path)
    expected = model.state_dict()
    if checkpoint.config.tie_word_embeddings:
        del expected["lm_head.weight"]
    assert checkpoint.tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(checkpoint.tensors[name], tensor), name
    assert checkpoint.config.tie_word_embeddings == model.config.tie_word_embeddings
    assert checkpoint.config.head_dim == model.config.head_dim
    assert checkpoint.config.num_kv_heads == model.config.num_key_value_heads
    assert checkpoint.tokenizer_dir == tmp_path


def test_shards_are_read_as_one(tmp_path: Path) -> None:
    whole, sharded = saved(tmp_path / "whole"), saved(tmp_path / "sharded", shard_size="60KB")
    assert len(list(sharded.glob("*.safetensors"))) > 3
    one, many = load_checkpoint(whole), load_checkpoint(sharded)
    assert one.tensors.keys() == many.tensors.keys()
    assert all(torch.equal(one.tensors[name], many.tensors[name]) for name in one.tensors)
    assert one.config == many.config
    assert set(many.sha256) == {p.name for p in sharded.glob("*.safetensors")}


def test_bf16_stays_bf16(tmp_path: Path) -> None:
    random_llama().bfloat16().save_pretrained(tmp_path)
    assert {tensor.dtype for tensor in load_checkpoint(tmp_path).tensors.values()} == {torch.bfloat16}


def test_sha256_is_that_of_the_file(folder: Path) -> None:
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert load_checkpoint(folder).sha256 == {"model.safetensors": digest}


def test_generation_config_is_read(folder: Path) -> None:
    change_json(folder / "generation_config.json", eos_token_id=[2, 5])
    assert load_checkpoint(folder).config.eos_token_ids == (2, 5)


def test_rotary_frequencies_of_old_files_are_ignored(folder: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    change_weights(folder, lambda tensors: tensors.update({name: torch.ones(8)}))
    assert name not in load_checkpoint(folder).tensors


def test_a_tied_head_may_be_stored_when_it_is_the_embedding(tmp_path: Path) -> None:
    folder = saved(tmp_path, tie_word_embeddings=True)
    embedding = "model.embed_tokens.weight"
    change_weights(folder, lambda tensors: tensors.update({"lm_head.weight": tensors[embedding].clone()}))
    assert "lm_head.weight" not in load_checkpoint(folder).tensors
    change_weights(folder, lambda tensors: tensors.update({"lm_head.weight": tensors[embedding] + 1}))
    with pytest.raises(CheckpointError, match=r"lm_head.weight differs from model.embed_tokens.weight"):
        load_checkpoint(folder)


def refused(path: Path, *named: str) -> None:
    with pytest.raises(CheckpointError) as refusal:
        load_checkpoint(path)
    assert isinstance(refusal.value, ConfigError)
    for part in (str(path), *named):
        assert part in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_missing_tensor(folder: Path) -> None:
    change_weights(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    refused(folder, "model.layers.1.mlp.up_proj.weight", "(96, 64)", "missing")


def test_a_tensor_too_many(folder: Path) -> None:
    change_weights(folder, lambda tensors: tensors.update({"model.layers.2.extra": torch.ones(3)}))
    refused(folder, "model.layers.2.extra", "(3,)", "unexpected")


def test_a_bias(folder: Path) -> None:
    name = "model.layers.0.self_attn.q_proj.bias"
    change_weights(folder, lambda tensors: tensors.update({name: torch.ones(64)}))
    refused(folder, name, "biases are not supported")


def test_a_wrong_shape(folder: Path) -> None:
    change_json(folder / "config.json", intermediate_size=128)
    refused(folder, "model.layers.0.mlp.", "has shape", "96", "the config needs", "128")


def test_integer_weights(folder: Path) -> None:
    change_weights(folder, lambda t: t.update({"model.norm.weight": torch.ones(64, dtype=torch.int8)}))
    refused(folder, "model.norm.weight", "I8", "BF16")


def test_another_architecture(folder: Path) -> None:
    change_json(folder / "config.json", architectures=["Qwen3ForCausalLM"], model_type="qwen3")
    refused(folder, "config.json", "Qwen3ForCausalLM", "LlamaForCausalLM")


@pytest.mark.parametrize("kept", [0, 7, 100, 5000, -1])
def test_a_truncated_file(folder: Path, kept: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    refused(folder, "model.safetensors", "not a readable safetensors file")


def test_a_corrupt_header(folder: Path) -> None:
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[:8] = (1 << 60).to_bytes(8, "little")
    file.write_bytes(content)
    refused(folder, "model.safetensors", "not a readable safetensors file")


def test_a_missing_shard(tmp_path: Path) -> None:
    folder = saved(tmp_path, shard_size="60KB")
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.unlink()
    refused(folder, shard.name, "missing")


def test_a_shard_that_lacks_its_tensor(tmp_path: Path) -> None:
    folder = saved(tmp_path, shard_size="60KB")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    shard = folder / index["weight_map"]["model.norm.weight"]
    tensors = load_file(shard)
    del tensors["model.norm.weight"]
    save_file(tensors or {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(1)}, shard)
    refused(folder, "model.norm.weight", "missing")


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    folder = saved(tmp_path, shard_size="60KB")
    first, second = sorted(folder.glob("*.safetensors"))[:2]
    tensors = load_file(first)
    save_file(load_file(second) | tensors, second)
    refused(folder, second.name, next(iter(tensors)), "another shard")


@pytest.mark.parametrize(
    "weight_map",
    [None, {}, [], {"model.norm.weight": "../model.safetensors"}, {"model.norm.weight": 3}, {"a": "a.bin"}],
)
def test_a_broken_index(folder: Path, weight_map: object) -> None:
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    refused(folder, "model.safetensors.index.json")


@pytest.mark.parametrize("pickle", ["pytorch_model.bin", "consolidated.00.pth", "model.pt"])
def test_pickles_are_never_opened(folder: Path, pickle: str) -> None:
    (folder / "model.safetensors").rename(folder / pickle)
    refused(folder, pickle, "pickle")


def test_no_weights_at_all(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    refused(folder, "neither model.safetensors nor")


@pytest.mark.parametrize("content", ["", "{", "[]", "3", "\x00"])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_broken_json(folder: Path, name: str, content: str) -> None:
    (folder / name).write_text(content)
    refused(folder, name)


def test_no_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    refused(folder, "config.json", "no such file")


def test_no_such_path(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "no such file or folder")


def test_a_file_that_is_no_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "weights.bin"
    file.write_bytes(b"x")
    refused(file, "HuggingFace folder or a .gguf file")
