"""Small random models in files: HuggingFace folders by transformers, GGUF files by the `gguf` library."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

GgmlType = gguf.GGMLQuantizationType

SHAPES: dict[str, dict[str, Any]] = {
    "llama-2": {"num_key_value_heads": 4},
    "grouped": {"num_key_value_heads": 2},
    "one-kv-head": {"num_key_value_heads": 1},
    "group-of-three": {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2},
    "wide-heads": {"head_dim": 32, "num_key_value_heads": 2},
    "tied": {"tie_word_embeddings": True, "num_key_value_heads": 2},
    "llama-3.2": {
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
}


def random_llama(**changes: Any) -> LlamaForCausalLM:
    """A random model of transformers in float32, 2 layers, 64 wide, 4 heads unless changed."""
    values = {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 16384,
        "initializer_range": 0.5,
    }
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**(values | changes))).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model


def gguf_tensors(model: LlamaForCausalLM) -> dict[str, np.ndarray]:
    """The model's weights under llama.cpp's names, with q and k in llama.cpp's row order."""
    config, result = model.config, {}
    names = {
        "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }  # fmt: skip
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stem = name.removesuffix(".weight")
        weight = tensor.numpy()
        if stem.startswith("model.layers."):
            _, _, layer, part = stem.split(".", 3)
            stem = f"blk.{layer}.{names[part]}"
            if part == "self_attn.q_proj":
                weight = llama_cpp_rows(weight, config.num_attention_heads)
            if part == "self_attn.k_proj":
                weight = llama_cpp_rows(weight, config.num_key_value_heads)
        else:
            stem = names[stem]
        result[f"{stem}.weight"] = weight
    return result


def llama_cpp_rows(weight: np.ndarray, heads: int) -> np.ndarray:
    """HuggingFace rotates rows i and i + D/2 of a head, llama.cpp rows 2i and 2i + 1: row by row, by hand."""
    head_dim = weight.shape[0] // heads
    moved = np.empty_like(weight)
    for head, i in itertools.product(range(heads), range(head_dim // 2)):
        moved[head * head_dim + 2 * i] = weight[head * head_dim + i]
        moved[head * head_dim + 2 * i + 1] = weight[head * head_dim + head_dim // 2 + i]
    return moved


def huggingface_rows(weight: np.ndarray, heads: int) -> np.ndarray:
    """The way back, by hand as well."""
    head_dim = weight.shape[0] // heads
    moved = np.empty_like(weight)
    for head, i in itertools.product(range(heads), range(head_dim // 2)):
        moved[head * head_dim + i] = weight[head * head_dim + 2 * i]
        moved[head * head_dim + head_dim // 2 + i] = weight[head * head_dim + 2 * i + 1]
    return moved


def gguf_metadata(model: LlamaForCausalLM) -> dict[str, Any]:
    """What llama.cpp's converter says about the model's shape, and a byte-level tokenizer of its size."""
    config = model.config
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.block_count": config.num_hidden_layers,
        "llama.context_length": config.max_position_embeddings,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.attention.key_length": config.head_dim,
        "llama.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "llama.rope.freq_base": config.rope_parameters["rope_theta"],
        "llama.rope.dimension_count": config.head_dim,
    }
    return metadata | byte_level_metadata(config.vocab_size)


def byte_level_metadata(vocab_size: int) -> dict[str, Any]:
    """A byte-level BPE vocabulary: two special tokens, the 256 bytes, then pairs of letters."""
    from tokenizers.pre_tokenizers import ByteLevel

    letters = "etaoinsrhldcumfpgwybvk"
    pairs = [a + b for a in letters for b in letters]
    tokens = ["<|end|>", "<|turn|>", *sorted(ByteLevel.alphabet())]
    merged = pairs[: vocab_size - len(tokens)]
    tokens += merged
    assert len(tokens) == vocab_size
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3] + [1] * (vocab_size - 2),
        "tokenizer.ggml.merges": [f"{pair[0]} {pair[1]}" for pair in merged],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
    }


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    matrices_as: GgmlType = GgmlType.F32,
) -> Path:
    """Write a GGUF file; matrices of layers are quantised as asked, everything else stays float32."""
    writer = gguf.GGUFWriter(path, metadata["general.architecture"])
    for key, value in metadata.items():
        if key != "general.architecture":
            _add(writer, key, value)
    for name, tensor in tensors.items():
        kind = matrices_as if tensor.ndim == 2 else GgmlType.F32
        writer.add_tensor(name, gguf.quantize(np.ascontiguousarray(tensor), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
