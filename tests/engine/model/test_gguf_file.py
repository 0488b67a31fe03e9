"""GGUF files: every tensor exact and in HuggingFace's order, or refused by name."""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from engine.model import gguf_file
from engine.model.checkpoint import CheckpointError, load_checkpoint
from engine.model.gguf_file import open_gguf
from tests.engine.model.made import (
    SHAPES,
    GgmlType,
    gguf_metadata,
    gguf_tensors,
    huggingface_rows,
    random_llama,
    write_gguf,
)


def dequantised(raw: bytes, kind: GgmlType, shape: tuple[int, ...]) -> np.ndarray:
    """The block formats as ggml documents them, 32 weights a block, read here without the gguf library.

    Q8_0: half d, 32 int8 q; d·q. Q4_0: half d, 16 bytes; low nibbles are the first 16 weights, high ones the
    last 16; d·(q - 8). Q4_1: half d, half m, 16 bytes; d·q + m. BF16 is the upper half of a float32.
    """
    if kind is GgmlType.F32:
        return np.frombuffer(raw, np.float32).reshape(shape)
    if kind is GgmlType.F16:
        return np.frombuffer(raw, np.float16).astype(np.float32).reshape(shape)
    if kind is GgmlType.BF16:
        return (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
    layout = {
        GgmlType.Q8_0: [("d", "<f2"), ("q", "i1", 32)],
        GgmlType.Q4_0: [("d", "<f2"), ("q", "u1", 16)],
        GgmlType.Q4_1: [("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)],
    }[kind]
    blocks = np.frombuffer(raw, np.dtype(layout))
    scale = blocks["d"].astype(np.float32)[:, None]
    if kind is GgmlType.Q8_0:
        return (scale * blocks["q"]).reshape(shape)
    nibbles = np.concatenate((blocks["q"] & 15, blocks["q"] >> 4), axis=1).astype(np.float32)
    if kind is GgmlType.Q4_0:
        return (scale * (nibbles - 8)).reshape(shape)
    return (scale * nibbles + blocks["m"].astype(np.float32)[:, None]).reshape(shape)


def expected_tensor(path: Path, gguf_name: str, heads: int | None) -> torch.Tensor:
    """A tensor of a file by the formulas of this file, q and k rows moved back one by one."""
    stored = next(t for t in gguf.GGUFReader(path).tensors if t.name == gguf_name)
    shape = tuple(int(n) for n in reversed(stored.shape))
    weight = dequantised(stored.data.tobytes(), stored.tensor_type, shape)
    return torch.tensor(huggingface_rows(weight, heads) if heads else weight)


@pytest.mark.parametrize("shape", SHAPES)
def test_float32_weights_come_back_exactly(shape: str, tmp_path: Path) -> None:
    model = random_llama(**SHAPES[shape])
    metadata, tensors = gguf_metadata(model), gguf_tensors(model)
    if shape == "llama-3.2":
        tensors["rope_freqs.weight"] = llama3_divisors(model.config.head_dim, 500000.0, 32.0)
    checkpoint = load_checkpoint(write_gguf(tmp_path / "m.gguf", metadata, tensors))
    expected = model.state_dict()
    if model.config.tie_word_embeddings:
        del expected["lm_head.weight"]
    assert checkpoint.tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(checkpoint.tensors[name], tensor), name
    config = checkpoint.config
    assert config.tie_word_embeddings == model.config.tie_word_embeddings
    assert (config.head_dim, config.num_kv_heads) == (model.config.head_dim, model.config.num_key_value_heads)
    assert config.rms_norm_eps == model.config.rms_norm_eps
    assert config.rope_theta == model.config.rope_parameters["rope_theta"]
    assert (config.rope_scaling is not None) == (shape == "llama-3.2")
    assert (config.bos_token_id, config.eos_token_ids) == (1, (0,))


def test_skipping_the_row_order_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_llama(num_key_value_heads=2)
    path = write_gguf(tmp_path / "m.gguf", gguf_metadata(model), gguf_tensors(model))
    monkeypatch.setattr(gguf_file, "unpermuted", lambda weight, heads: weight)
    loaded, expected = load_checkpoint(path).tensors, model.state_dict()
    wrong = {name for name, tensor in expected.items() if not torch.equal(loaded[name], tensor)}
    assert wrong == {f"model.layers.{i}.self_attn.{p}_proj.weight" for i in (0, 1) for p in "qk"}


@pytest.mark.parametrize("kind", [GgmlType[name] for name in gguf_file.WEIGHT_TYPES], ids=lambda k: k.name)
def test_every_weight_type(kind: GgmlType, tmp_path: Path) -> None:
    model = random_llama(num_key_value_heads=2)
    path = write_gguf(tmp_path / "m.gguf", gguf_metadata(model), gguf_tensors(model), kind)
    opened = open_gguf(path)
    for gguf_name, hf_name, heads in (
        ("token_embd", "model.embed_tokens", None),
        ("blk.1.attn_q", "model.layers.1.self_attn.q_proj", 4),
        ("blk.1.attn_k", "model.layers.1.self_attn.k_proj", 2),
        ("blk.1.attn_v", "model.layers.1.self_attn.v_proj", None),
        ("blk.0.ffn_down", "model.layers.0.mlp.down_proj", None),
        ("output_norm", "model.norm", None),
    ):
        weight = opened.tensor(f"{hf_name}.weight")
        assert weight.dtype == torch.float32
        assert torch.equal(weight, expected_tensor(path, f"{gguf_name}.weight", heads)), gguf_name
    stored = {GgmlType.F32: torch.float32, GgmlType.F16: torch.float16}.get(kind, torch.bfloat16)
    assert opened.dtype == stored
    assert opened.config_json["dtype"] == str(stored).removeprefix("torch.")


def llama3_divisors(head_dim: int, theta: float, factor: float) -> np.ndarray:
    """What Meta's reference does to each frequency, one by one: kept, divided, or in between."""
    divisors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * np.pi * theta ** (i / head_dim)
        if wavelength < 8192 / 4.0:
            divisors.append(1.0)
        elif wavelength > 8192 / 1.0:
            divisors.append(factor)
        else:
            smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama_3_scaling_is_found_in_its_divisors(factor: float, tmp_path: Path) -> None:
    model = random_llama(head_dim=64, rope_parameters=SHAPES["llama-3.2"]["rope_parameters"])
    divisors = llama3_divisors(64, 500000.0, factor)
    assert ((divisors > 1) & (divisors < factor)).sum() > 0
    tensors = gguf_tensors(model) | {"rope_freqs.weight": divisors}
    scaling = open_gguf(write_gguf(tmp_path / "m.gguf", gguf_metadata(model), tensors)).config.rope_scaling
    assert scaling is not None
    assert (scaling.factor, scaling.low_freq_factor, scaling.high_freq_factor) == (factor, 1.0, 4.0)
    assert scaling.original_max_position_embeddings == 8192


def test_both_ends_of_a_turn_end_a_text(tmp_path: Path) -> None:
    model = random_llama()
    metadata = gguf_metadata(model) | {"tokenizer.ggml.eot_token_id": 7}
    opened = open_gguf(write_gguf(tmp_path / "m.gguf", metadata, gguf_tensors(model)))
    assert opened.config.eos_token_ids == (0, 7)
    assert opened.generation_config["eos_token_id"] == [0, 7]


Change = Callable[[dict, dict], object]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda m, t: m.update({"general.architecture": "qwen2"}), "'qwen2'"),
        (lambda m, t: m.update({"llama.expert_count": 8}), "expert_count is 8"),
        (lambda m, t: m.update({"llama.rope.scaling.type": "linear"}), "'linear'"),
        (lambda m, t: m.update({"llama.rope.dimension_count": 8}), "dimension_count is 8"),
        (lambda m, t: m.pop("llama.block_count"), "llama.block_count is missing"),
        (lambda m, t: m.update({"llama.block_count": 3}), "model.layers.2"),
        (lambda m, t: m.update({"llama.attention.head_count_kv": 3}), "num_key_value_heads 3"),
        (lambda m, t: m.update({"llama.attention.head_count_kv": [4, 4]}), "[4, 4]"),
        (lambda m, t: m.update({"llama.feed_forward_length": 64}), "(96, 64); the config needs (64, 64)"),
        (lambda m, t: t.pop("token_embd.weight"), "token_embd.weight is missing"),
        (lambda m, t: t.pop("blk.0.ffn_up.weight"), "model.layers.0.mlp.up_proj.weight"),
        (lambda m, t: t.update({"blk.0.attn_q.bias": np.ones(64, np.float32)}), "biases are not supported"),
        (lambda m, t: t.update({"blk.0.ffn_gate_inp.weight": np.ones(64, np.float32)}), "ffn_gate_inp"),
        (lambda m, t: t.update({"rope_freqs.weight": np.full(8, 3, np.float32)}), "rope_freqs.weight"),
        (lambda m, t: t.update({"rope_freqs.weight": np.ones(5, np.float32)}), "rope_freqs.weight"),
    ],
)
def test_refused_by_name(change: Change, named: str, tmp_path: Path) -> None:
    model = random_llama()
    metadata, tensors = gguf_metadata(model), gguf_tensors(model)
    change(metadata, tensors)
    path = write_gguf(tmp_path / "m.gguf", metadata, tensors)
    with pytest.raises(CheckpointError) as refusal:
        load_checkpoint(path)
    assert str(path) in str(refusal.value)
    assert named in str(refusal.value)


def test_a_weight_type_without_support(tmp_path: Path) -> None:
    model = random_llama()
    path = write_gguf(tmp_path / "m.gguf", gguf_metadata(model), gguf_tensors(model), GgmlType.Q5_1)
    with pytest.raises(CheckpointError, match=r"stored as Q5_1; supported: F32, F16, BF16, Q8_0, Q4_0, Q4_1"):
        load_checkpoint(path)


def test_a_file_cut_anywhere(tmp_path: Path) -> None:
    model = random_llama()
    whole = write_gguf(tmp_path / "m.gguf", gguf_metadata(model), gguf_tensors(model)).read_bytes()
    path = tmp_path / "cut.gguf"
    for kept in [0, 3, 4, 20, 30, 100, 1000, *range(2000, len(whole), len(whole) // 12), len(whole) - 64]:
        path.write_bytes(whole[:kept])
        with pytest.raises(CheckpointError, match=r"cut.gguf: not a readable GGUF file"):
            load_checkpoint(path)


def test_counts_beyond_the_file(tmp_path: Path) -> None:
    """A damaged length ends the reading at once instead of running through 2^60 entries."""
    model = random_llama()
    metadata = {"general.architecture": "llama", "numbers": [1, 2, 3]} | gguf_metadata(model)
    content = bytearray(write_gguf(tmp_path / "m.gguf", metadata, gguf_tensors(model)).read_bytes())
    count_at = content.index(b"numbers") + len(b"numbers") + 8
    assert int.from_bytes(content[count_at : count_at + 8], "little") == 3
    content[count_at : count_at + 8] = (1 << 60).to_bytes(8, "little")
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"damaged.gguf: not a readable GGUF file"):
        load_checkpoint(path)


def test_something_else_under_that_name(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(1000))
    with pytest.raises(CheckpointError, match=r"m.gguf: not a readable GGUF file"):
        load_checkpoint(path)
