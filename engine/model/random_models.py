"""Models of known shapes with random weights, for measuring speed: the same bytes on every machine.

Their tokenizer comes from a trained byte-level BPE: the first merges of a BPE are the BPE of a smaller
vocabulary. A larger vocabulary is filled up with pairs of common words, which decode to text but never result
from encoding.
"""

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch

from engine.config import ModelConfig
from engine.model.gguf_tokenizer import TokenType, tokenizer_config, tokenizer_of
from engine.model.hf_folder import HfFolder
from engine.model.layout import tensor_shapes

SEED = 0
WEIGHT_STD = 0.02
RMS_NORM_EPS = 1e-5
CHUNK = 1 << 16  # weights made at once, so that the steps between stay in the processor's cache
LOW_PARTS = np.uint64(0x0000FFFF_0000FFFF)


@dataclass(frozen=True)
class Shape:
    """One Llama shape; `llama3_factor` is the factor of Llama 3's rope scaling, where it has one."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    inner: int
    vocab: int
    context: int
    theta: float = 10000.0
    llama3_factor: float | None = None
    tied: bool = False


SHAPES = {
    "llama-190m": Shape(20, 768, 12, 12, 2048, 32000, 4096),
    "llama-3.2-1b": Shape(16, 2048, 32, 8, 8192, 128256, 131072, 500000.0, 32.0, tied=True),
    "llama-3.2-3b": Shape(28, 3072, 24, 8, 8192, 128256, 131072, 500000.0, 32.0, tied=True),
    "llama-3.1-8b": Shape(32, 4096, 32, 8, 14336, 128256, 131072, 500000.0, 8.0),
}


def random_model(name: str, shape: Shape, vocabulary: Mapping[str, Any]) -> HfFolder:
    """The folder of a bf16 model of this shape: matrices of standard deviation 0.02, norms of ones.

    vocabulary: the metadata of a GGUF file whose tokens are specials, bytes and then one a merge, in order.
    """
    resized = resized_vocabulary(vocabulary, shape.vocab)
    config_json = _config_json(shape, resized)
    shapes = tensor_shapes(ModelConfig.from_hf(config_json))
    return HfFolder(
        config_json=config_json,
        generation_config={key: config_json[key] for key in ("bos_token_id", "eos_token_id")},
        tokenizer=tokenizer_of(resized),
        tokenizer_config=tokenizer_config(resized, shape.context),
        dtype=torch.bfloat16,
        shapes=shapes,
        tensor_of=lambda tensor: random_tensor(f"{SEED}:{name}:{tensor}", shapes[tensor]),
    )


def random_tensor(stream: str, shape: tuple[int, ...]) -> torch.Tensor:
    """A float32 tensor that depends on `stream` and `shape` only: ones for a vector (a norm), else random.

    A weight is the sum of four independent 16-bit integers, centred and scaled to WEIGHT_STD (Irwin-Hall,
    close to normal), out of Philox (Salmon et al., 2011). Integer sums are the same on every machine, which
    the logarithms and cosines of a normal generator are not.
    """
    if len(shape) == 1:
        return torch.ones(shape)
    key = int.from_bytes(hashlib.sha256(stream.encode()).digest()[:16], "little")
    source = np.random.Philox(key=key)
    std_of_sums = ((0x10000**2 - 1) / 3) ** 0.5  # variance of one part: (n² - 1) / 12
    values = np.empty(prod(shape), np.float32)
    for start in range(0, len(values), CHUNK):
        chunk = values[start : start + CHUNK]
        words = source.random_raw(len(chunk))
        pairs = (words & LOW_PARTS) + ((words >> np.uint64(16)) & LOW_PARTS)
        chunk[:] = (pairs & np.uint64(0xFFFFFFFF)) + (pairs >> np.uint64(32))
        chunk -= 2 * 0xFFFF
        chunk *= WEIGHT_STD / std_of_sums
    return torch.from_numpy(values).view(shape)


def resized_vocabulary(vocabulary: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Tokenizer metadata with exactly `size` tokens, cut after a merge or filled up with pairs of words."""
    tokens, types, merges = (
        vocabulary[f"tokenizer.ggml.{name}"] for name in ("tokens", "token_type", "merges")
    )
    before_merges = len(tokens) - len(merges)
    words = [token for token in tokens[before_merges:] if token.startswith("Ġ") and token[1:].isalpha()]
    pairs = (first + second for first, second in itertools.product(words, repeat=2))
    known = set(tokens)
    fill = itertools.islice((pair for pair in pairs if pair not in known), max(0, size - len(tokens)))
    resized = [*tokens[:size], *fill]
    return dict(vocabulary) | {
        "tokenizer.ggml.tokens": resized,
        "tokenizer.ggml.token_type": [*types[:size], *[TokenType.NORMAL] * (len(resized) - len(types))],
        "tokenizer.ggml.merges": merges[: size - before_merges],
    }


def _config_json(shape: Shape, vocabulary: Mapping[str, Any]) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_theta": shape.theta, "rope_type": "default"}
    if shape.llama3_factor is not None:
        rope |= {
            "rope_type": "llama3",
            "factor": shape.llama3_factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.hidden // shape.heads,
        "hidden_act": "silu",
        "rms_norm_eps": RMS_NORM_EPS,
        "max_position_embeddings": shape.context,
        "rope_theta": shape.theta,
        "rope_parameters": rope,
        "tie_word_embeddings": shape.tied,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": vocabulary["tokenizer.ggml.bos_token_id"],
        "eos_token_id": vocabulary["tokenizer.ggml.eos_token_id"],
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        "llm_ladder_weights": f"random, seed {SEED}",
    }
