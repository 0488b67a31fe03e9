"""Reading a Llama model out of a GGUF file: config, and weights as float32 under their HuggingFace names.

The container is read by the `gguf` library; what the keys and tensors mean is llama.cpp's convention for
architecture "llama".
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from engine.config import ConfigError, ModelConfig
from engine.model.layout import EMBEDDING, HEAD, CheckpointError, check_shapes

WEIGHT_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1")
ROPE_FACTORS = "rope_freqs.weight"
# What llama.cpp's converter assumes where a config does not say: Meta's values for Llama 3.1 and 3.2.
LLAMA3_LOW_FREQ_FACTOR, LLAMA3_HIGH_FREQ_FACTOR, LLAMA3_ORIGINAL_CONTEXT = 1.0, 4.0, 8192

_TOP_LEVEL = {
    "token_embd.weight": EMBEDDING,
    "output_norm.weight": "model.norm.weight",
    "output.weight": HEAD,
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True)
class GgufFile:
    """An opened GGUF file; its tensors stay on disk until asked for.

    metadata: the file's keys. config_json, generation_config: what a HuggingFace folder of this model says.
    dtype: the float type that holds the weights as the file has them (bfloat16 for quantised ones).
    """

    path: Path
    metadata: dict[str, Any]
    config_json: dict[str, Any]
    generation_config: dict[str, Any]
    config: ModelConfig
    dtype: torch.dtype
    stored: dict[str, gguf.ReaderTensor]

    def tensor(self, name: str) -> torch.Tensor:
        """One weight by its HuggingFace name: float32, dequantised, rows in HuggingFace's order."""
        stored = self.stored[name]
        weight = torch.from_numpy(np.array(gguf.dequantize(stored.data, stored.tensor_type), np.float32))
        if name.endswith("q_proj.weight"):
            return unpermuted(weight, self.config.num_heads)
        if name.endswith("k_proj.weight"):
            return unpermuted(weight, self.config.num_kv_heads)
        return weight


def unpermuted(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo llama.cpp's row order of a q or k matrix (heads·D, H).

    llama.cpp rotates neighbouring rows (2i, 2i + 1) of a head, HuggingFace rows (i, i + D/2): row 2i + p of a
    head in the file is row p·D/2 + i.
    """
    rows, width = weight.shape
    return weight.view(heads, rows // heads // 2, 2, width).transpose(1, 2).reshape(rows, width)


def open_gguf(path: Path) -> GgufFile:
    """Open a GGUF file of architecture "llama" and check all but the values of its weights.

    Raises CheckpointError naming the file and the key or tensor at fault.
    """
    try:
        return _open(path)
    except CheckpointError:
        raise
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from None


class _Reader(gguf.GGUFReader):
    """The library's reader, with two changes to its inner steps.

    It stops at the end of the file, where the library goes on with empty arrays; and it reads an array in one
    go, where the library makes several numpy views an entry, which takes seconds for a vocabulary.
    """

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
        self._check_end(int(offset) + int(count) * np.dtype(dtype).itemsize)
        return super()._get(offset, dtype, count, override_order)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
        array, string = gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.STRING
        if raw_type != array:
            return super()._get_field_parts(orig_offs, raw_type)
        kind = gguf.GGUFValueType(self._get(orig_offs, np.uint32)[0])
        count = int(self._get(orig_offs + 4, np.uint64)[0])
        start = orig_offs + 12
        if (scalar := self.gguf_scalar_to_np.get(kind)) is not None:
            values = self._get(start, scalar, count)
            return 12 + values.nbytes, [values], [0], [array, kind]
        if kind is not string:
            raise ValueError(f"metadata arrays of {kind.name} are not supported")
        content, end, strings = memoryview(self.data), start, []
        for _ in range(count):
            self._check_end(end + 8)
            begin = end + 8
            end = begin + int.from_bytes(content[end:begin], "little")
            self._check_end(end)
            strings.append(content[begin:end])
        return end - orig_offs, strings, list(range(count)), [array, string]

    def _check_end(self, end: int) -> None:
        if end > len(self.data):
            raise ValueError(f"it ends at byte {len(self.data):,}, its header counts on {end:,}")


def _open(path: Path) -> GgufFile:
    try:
        reader = _Reader(path)
        metadata = {key: field.contents() for key, field in reader.fields.items()}
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, OSError) as error:
        raise CheckpointError(f"{path}: not a readable GGUF file ({error})") from None
    if reader.endianess is not gguf.GGUFEndian.LITTLE:
        raise CheckpointError(f"{path}: byte order is big-endian; only little-endian files are supported")
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise CheckpointError(f"{path}: general.architecture is {architecture!r}; only 'llama' is supported")
    by_gguf_name = {tensor.name: tensor for tensor in reader.tensors}
    for tensor in reader.tensors:
        if tensor.tensor_type.name not in WEIGHT_TYPES:
            raise CheckpointError(
                f"{path}: tensor {tensor.name} is stored as {tensor.tensor_type.name}; "
                f"supported: {', '.join(WEIGHT_TYPES)}"
            )
    rope_factors = by_gguf_name.pop(ROPE_FACTORS, None)
    stored = {_hf_name(name): tensor for name, tensor in by_gguf_name.items()}
    if EMBEDDING not in stored:
        raise CheckpointError(f"{path}: tensor token_embd.weight is missing")
    dtype = _dtype(reader.tensors)
    config_json = _config_json(path, metadata, stored, rope_factors, dtype)
    generation_config = _generation_config(metadata)
    config = ModelConfig.from_hf(config_json, generation_config)
    check_shapes(str(path), config, {name: _shape(tensor) for name, tensor in stored.items()})
    return GgufFile(path, metadata, config_json, generation_config, config, dtype, stored)


def _shape(tensor: gguf.ReaderTensor) -> tuple[int, ...]:
    return tuple(int(n) for n in reversed(tensor.shape))


def _hf_name(name: str) -> str:
    """HuggingFace's name of a tensor; a name without one stays as it is, for the error message."""
    in_layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if in_layer and in_layer[2] in _IN_LAYER:
        return f"model.layers.{in_layer[1]}.{_IN_LAYER[in_layer[2]]}.{in_layer[3]}"
    return _TOP_LEVEL.get(name, name)


def _dtype(tensors: list[gguf.ReaderTensor]) -> torch.dtype:
    """Norms are float32 in every GGUF file, so the matrices decide."""
    kinds = {tensor.tensor_type.name for tensor in tensors if len(tensor.shape) > 1}
    if kinds == {"F32"}:
        return torch.float32
    return torch.float16 if kinds <= {"F32", "F16"} else torch.bfloat16


def _config_json(
    path: Path,
    metadata: dict[str, Any],
    stored: dict[str, gguf.ReaderTensor],
    rope_factors: gguf.ReaderTensor | None,
    dtype: torch.dtype,
) -> dict[str, Any]:
    def key(name: str) -> Any:
        if f"llama.{name}" not in metadata:
            raise CheckpointError(f"{path}: metadata key llama.{name} is missing")
        return metadata[f"llama.{name}"]

    if metadata.get("llama.expert_count"):
        raise CheckpointError(
            f"{path}: llama.expert_count is {metadata['llama.expert_count']}; "
            "mixtures of experts are not supported"
        )
    scaling_type = metadata.get("llama.rope.scaling.type", "none")
    if scaling_type != "none":
        raise CheckpointError(
            f"{path}: llama.rope.scaling.type is {scaling_type!r}; only 'none' is supported"
        )
    heads = key("attention.head_count")
    head_dim = metadata.get("llama.attention.key_length", key("embedding_length") // heads)
    rotated = metadata.get("llama.rope.dimension_count", head_dim)
    if rotated != head_dim:
        raise CheckpointError(
            f"{path}: llama.rope.dimension_count is {rotated}; only the whole head of {head_dim} is supported"
        )
    theta = metadata.get("llama.rope.freq_base", 10000.0)
    torch_name = str(dtype).removeprefix("torch.")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": _shape(stored[EMBEDDING])[0],
        "hidden_size": key("embedding_length"),
        "intermediate_size": key("feed_forward_length"),
        "num_hidden_layers": key("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.get("llama.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": _as_written(key("attention.layer_norm_rms_epsilon")),
        "max_position_embeddings": key("context_length"),
        "rope_theta": theta,
        "rope_parameters": {"rope_theta": theta}
        | _rope_scaling(path, metadata, rope_factors, head_dim, theta),
        "tie_word_embeddings": HEAD not in stored,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
        "dtype": torch_name,
        "torch_dtype": torch_name,
    }


def _as_written(value: float) -> float:
    """The shortest decimal that is this float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _rope_scaling(
    path: Path,
    metadata: dict[str, Any],
    rope_factors: gguf.ReaderTensor | None,
    head_dim: int,
    theta: float,
) -> dict[str, Any]:
    """The "llama3" parameters behind the D/2 frequency divisors of a file.

    A GGUF file holds only the divisors. The factor is the largest of them; the other parameters are Meta's,
    and the divisors that they give must be the file's.
    """
    if rope_factors is None:
        return {"rope_type": "default"}
    divisors = np.asarray(gguf.dequantize(rope_factors.data, rope_factors.tensor_type), np.float64)
    scaling = {
        "rope_type": "llama3",
        "factor": float(divisors.max()),
        "low_freq_factor": LLAMA3_LOW_FREQ_FACTOR,
        "high_freq_factor": LLAMA3_HIGH_FREQ_FACTOR,
        "original_max_position_embeddings": metadata.get(
            "llama.rope.scaling.original_context_length", LLAMA3_ORIGINAL_CONTEXT
        ),
    }
    expected = _llama3_divisors(head_dim, theta, scaling)
    if divisors.shape != expected.shape or not np.allclose(divisors, expected, rtol=1e-4):
        raise CheckpointError(
            f"{path}: the frequency divisors in {ROPE_FACTORS} are not those of the Llama 3 rule "
            f"with {scaling}; no other scaling is supported"
        )
    return scaling


def _llama3_divisors(head_dim: int, theta: float, scaling: dict[str, Any]) -> np.ndarray:
    """Llama 3.1's rule (Meta's reference code) as divisors of the D/2 frequencies."""
    wavelengths = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    turns = scaling["original_max_position_embeddings"] / wavelengths
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    share = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return 1.0 / ((1.0 - share) / scaling["factor"] + share)


def _generation_config(metadata: dict[str, Any]) -> dict[str, Any]:
    eos = metadata.get("tokenizer.ggml.eos_token_id")
    end_of_turn = metadata.get("tokenizer.ggml.eot_token_id", eos)
    ids = {
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": eos if end_of_turn == eos else [eos, end_of_turn],
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
    }
    return {name: value for name, value in ids.items() if value is not None}
