"""The Llama forward pass, from tensors: embedding, layers over a paged KV cache, head."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from engine.config import ModelConfig
from engine.kernels.linear import linear
from engine.kernels.paged_attention import chunk_attention, decode_attention, write_kv
from engine.kernels.rms_norm import rms_norm
from engine.kernels.rope import apply_rope, rope_table


@dataclass(frozen=True)
class Batch:
    """What one step reads: decode rows first, then the rows of each prompt chunk.

    tokens, positions, kv_slots: (T,) int64. history: (B, L) int64 and visible: (B, L) bool belong to the
    first B rows, one decode token each. chunks: for each prompt chunk its rows [first, last) and the cache
    slots (L_c,) int64 of its sequence up to the chunk's end.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    kv_slots: torch.Tensor
    history: torch.Tensor
    visible: torch.Tensor
    chunks: tuple[tuple[int, int, torch.Tensor], ...]


@dataclass(frozen=True)
class Layer:
    """One block's weights; q, k, v and gate, up are stacked so that each is one matrix product."""

    attention_norm: torch.Tensor  # (H,)
    qkv: torch.Tensor  # ((heads + 2·kv_heads)·D, H)
    output: torch.Tensor  # (H, heads·D)
    mlp_norm: torch.Tensor  # (H,)
    gate_up: torch.Tensor  # (2·I, H)
    down: torch.Tensor  # (H, I)


class Llama:
    """Weights of one model on one device, and its forward pass.

    `tensors` holds HuggingFace names; everything is cast to `dtype` on `device`. `max_positions` bounds the
    positions that can be asked for.
    """

    def __init__(
        self,
        config: ModelConfig,
        tensors: dict[str, torch.Tensor],
        device: str,
        dtype: torch.dtype,
        max_positions: int,
    ) -> None:
        def on_device(*names: str) -> torch.Tensor:
            return torch.cat([tensors[n] for n in names]).to(device, dtype)

        def layer(i: int) -> Layer:
            attention, mlp = f"model.layers.{i}.self_attn", f"model.layers.{i}.mlp"
            return Layer(
                attention_norm=on_device(f"model.layers.{i}.input_layernorm.weight"),
                qkv=on_device(*(f"{attention}.{p}_proj.weight" for p in "qkv")),
                output=on_device(f"{attention}.o_proj.weight"),
                mlp_norm=on_device(f"model.layers.{i}.post_attention_layernorm.weight"),
                gate_up=on_device(f"{mlp}.gate_proj.weight", f"{mlp}.up_proj.weight"),
                down=on_device(f"{mlp}.down_proj.weight"),
            )

        self.config = config
        self.embedding = on_device("model.embed_tokens.weight")
        self.layers = [layer(i) for i in range(config.num_layers)]
        self.norm = on_device("model.norm.weight")
        self.head = self.embedding if config.tie_word_embeddings else on_device("lm_head.weight")
        self.cos, self.sin = rope_table(config, max_positions, dtype, device)

    def forward(self, batch: Batch, kv_cache: torch.Tensor) -> torch.Tensor:
        """Hidden states (T, H) after the last layer, before the final norm; K and V go into the cache.

        kv_cache: (layers, 2, cache slots, kv_heads, D).
        """
        cos, sin = self.cos[batch.positions], self.sin[batch.positions]
        hidden = F.embedding(batch.tokens, self.embedding)
        for layer, (k_cache, v_cache) in zip(self.layers, kv_cache, strict=True):
            normed = rms_norm(hidden, layer.attention_norm, self.config.rms_norm_eps)
            hidden = hidden + self._attention(layer, normed, cos, sin, batch, k_cache, v_cache)
            normed = rms_norm(hidden, layer.mlp_norm, self.config.rms_norm_eps)
            gate, up = linear(normed, layer.gate_up).chunk(2, dim=-1)
            hidden = hidden + linear(F.silu(gate) * up, layer.down)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(R, vocab), from rows (R, H) of forward()'s result: fp32, or fp64 for an fp64 model.

        The product's sums are fp32 anyway; rounding them to bf16, whose neighbours lie 0.125 apart from 16
        on, would make ties of the best tokens.
        """
        normed = rms_norm(hidden, self.norm, self.config.rms_norm_eps)
        if normed.dtype == torch.bfloat16 and normed.is_cuda:
            return torch.mm(normed, self.head.t(), out_dtype=torch.float32)
        logits = linear(normed, self.head)
        return logits if logits.dtype == torch.float64 else logits.float()

    def _attention(
        self,
        layer: Layer,
        normed: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        batch: Batch,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
    ) -> torch.Tensor:
        c = self.config
        heads = linear(normed, layer.qkv).view(-1, c.num_heads + 2 * c.num_kv_heads, c.head_dim)
        value = heads[:, c.num_heads + c.num_kv_heads :]
        rotated = apply_rope(heads[:, : c.num_heads + c.num_kv_heads], cos, sin)
        query, key = rotated[:, : c.num_heads], rotated[:, c.num_heads :]
        write_kv(k_cache, batch.kv_slots, key)
        write_kv(v_cache, batch.kv_slots, value)
        parts = []
        if decodes := batch.history.shape[0]:
            parts.append(decode_attention(query[:decodes], k_cache, v_cache, batch.history, batch.visible))
        for first, last, history in batch.chunks:
            parts.append(chunk_attention(query[first:last], k_cache, v_cache, history))
        return linear(torch.cat(parts).flatten(1), layer.output)
