"""The oracle: a tiny random Llama, and its greedy continuation by full recompute in float64.

Written apart from the engine on purpose: no cache, batch 1, attention by explicit loops over heads.
"""

import json
import math
from pathlib import Path

import torch
from safetensors.torch import save_file

from engine.config import ModelConfig


def tiny_config(**changes: object) -> ModelConfig:
    values: dict[str, object] = dict(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_layers=2, num_heads=4, num_kv_heads=2,
        head_dim=8, rms_norm_eps=1e-5, rope_theta=10000.0, rope_scaling=None, max_position_embeddings=256,
        tie_word_embeddings=True, bos_token_id=None, eos_token_ids=(0,),
    )  # fmt: skip
    return ModelConfig(**(values | changes))


def random_tensors(config: ModelConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    """Float64 weights under HuggingFace names, large enough that greedy outputs vary."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * scale

    h, d, i = config.hidden_size, config.head_dim, config.intermediate_size
    q, kv = config.num_heads * d, config.num_kv_heads * d
    tensors = {"model.embed_tokens.weight": normal(config.vocab_size, h, scale=1.0)}
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        shapes = {
            "self_attn.q_proj": (q, h), "self_attn.k_proj": (kv, h), "self_attn.v_proj": (kv, h),
            "self_attn.o_proj": (h, q), "mlp.gate_proj": (i, h), "mlp.up_proj": (i, h),
            "mlp.down_proj": (h, i),
        }  # fmt: skip
        for name, shape in shapes.items():
            tensors[f"{prefix}.{name}.weight"] = normal(*shape, scale=2.0 / math.sqrt(shape[1]))
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}.{name}.weight"] = 1 + normal(h, scale=0.1)
    tensors["model.norm.weight"] = 1 + normal(h, scale=0.1)
    if not config.tie_word_embeddings:
        tensors["lm_head.weight"] = normal(config.vocab_size, h, scale=1.0)
    return tensors


def write_folder(config: ModelConfig, folder: Path) -> Path:
    """The random model as a HuggingFace folder in fp32, without a tokenizer; returns the folder."""
    save_file({k: v.float() for k, v in random_tensors(config).items()}, folder / "model.safetensors")
    fields = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size, "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers, "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads, "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_norm_eps, "rope_theta": config.rope_theta, "hidden_act": "silu",
        "max_position_embeddings": config.max_position_embeddings,
        "tie_word_embeddings": config.tie_word_embeddings, "eos_token_id": list(config.eos_token_ids),
        "bos_token_id": config.bos_token_id, "attention_bias": False, "mlp_bias": False,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def oracle_logits(config: ModelConfig, weights: dict[str, torch.Tensor], tokens: list[int]) -> torch.Tensor:
    """Float64 logits (len(tokens), vocab) by the textbook formulas."""

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps).sqrt() * weights[name]

    def rotate(x: torch.Tensor) -> torch.Tensor:
        half = config.head_dim // 2
        positions = torch.arange(x.shape[0], dtype=torch.float64)
        angle = positions[:, None] * config.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
        a, b = x[:, :half], x[:, half:]
        return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), dim=1)

    x = weights["model.embed_tokens.weight"][tokens]
    group, d = config.num_heads // config.num_kv_heads, config.head_dim
    mask = torch.full((len(tokens), len(tokens)), float("-inf"), dtype=torch.float64).triu(1)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        normed = norm(x, f"{prefix}.input_layernorm.weight")
        q, k, v = (normed @ weights[f"{prefix}.self_attn.{p}_proj.weight"].T for p in "qkv")
        heads = []
        for head in range(config.num_heads):
            mine = slice(head * d, (head + 1) * d)
            shared = slice(head // group * d, (head // group + 1) * d)
            scores = rotate(q[:, mine]) @ rotate(k[:, shared]).T / math.sqrt(d) + mask
            heads.append(scores.softmax(-1) @ v[:, shared])
        x = x + torch.cat(heads, dim=1) @ weights[f"{prefix}.self_attn.o_proj.weight"].T
        normed = norm(x, f"{prefix}.post_attention_layernorm.weight")
        gate = normed @ weights[f"{prefix}.mlp.gate_proj.weight"].T
        up = normed @ weights[f"{prefix}.mlp.up_proj.weight"].T
        x = x + (gate * gate.sigmoid() * up) @ weights[f"{prefix}.mlp.down_proj.weight"].T
    head = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
    return norm(x, "model.norm.weight") @ weights[head].T


def oracle_greedy(
    config: ModelConfig,
    weights: dict[str, torch.Tensor],
    prompt: list[int],
    max_tokens: int,
    stop_ids: tuple[int, ...],
) -> list[int]:
    """Greedy continuation; ends after max_tokens or with the first stop id, which is included."""
    tokens = list(prompt)
    while len(tokens) - len(prompt) < max_tokens and (
        len(tokens) == len(prompt) or tokens[-1] not in stop_ids
    ):
        tokens.append(int(oracle_logits(config, weights, tokens)[-1].argmax()))
    return tokens[len(prompt) :]
