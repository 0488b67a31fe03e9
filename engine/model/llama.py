"""The Llama forward pass, from tensors: embedding, layers over a paged KV cache, head."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from engine.config import ModelConfig
from engine.kernels import few_rows
from engine.kernels.activation import silu_mul, silu_mul_reference
from engine.kernels.linear import linear
from engine.kernels.rms_norm import (
    add_rms_norm,
    add_rms_norm_reference,
    rms_norm,
    rms_norm_reference,
)
from engine.kernels.rope import rope_table
from engine.model.batch import Batch


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
    positions that can be asked for. Without `fused`, what stands between the products is PyTorch's operations
    on a GPU too.
    """

    def __init__(
        self,
        config: ModelConfig,
        tensors: dict[str, torch.Tensor],
        device: str,
        dtype: torch.dtype,
        max_positions: int,
        fused: bool = True,
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
        self._fused = fused
        self._rms_norm = rms_norm if fused else rms_norm_reference
        self._add_rms_norm = add_rms_norm if fused else add_rms_norm_reference
        self._silu_mul = silu_mul if fused else silu_mul_reference
        self.embedding = on_device("model.embed_tokens.weight")
        self.layers = [layer(i) for i in range(config.num_layers)]
        self.norm = on_device("model.norm.weight")
        self.head = self.embedding if config.tie_word_embeddings else on_device("lm_head.weight")
        self.cos, self.sin = rope_table(config, max_positions, dtype, device)

    def forward(self, batch: Batch, kv_cache: torch.Tensor) -> torch.Tensor:
        """Hidden states (T, H) after the final norm; K and V of the rows go into the cache.

        kv_cache: (layers, 2, cache slots, kv_heads, D).
        """
        hidden = F.embedding(batch.tokens, self.embedding)
        layers = self._few_rows if self._fused and few_rows.fits(hidden) else self._many_rows
        return layers(hidden, batch, kv_cache)

    def _few_rows(self, hidden: torch.Tensor, batch: Batch, kv_cache: torch.Tensor) -> torch.Tensor:
        eps = self.config.rms_norm_eps
        rotation = batch.rotation(self.cos, self.sin)
        for layer, (k_cache, v_cache) in zip(self.layers, kv_cache, strict=True):
            qkv = few_rows.norm_linear(hidden, layer.attention_norm, eps, layer.qkv)
            attended = batch.attend(qkv, rotation, k_cache, v_cache, self.config.num_heads)
            hidden = few_rows.linear_add(attended, layer.output, hidden)
            gated = few_rows.norm_gated_linear(hidden, layer.mlp_norm, eps, layer.gate_up)
            hidden = few_rows.linear_add(gated, layer.down, hidden)
        return rms_norm(hidden, self.norm, eps)

    def _many_rows(self, hidden: torch.Tensor, batch: Batch, kv_cache: torch.Tensor) -> torch.Tensor:
        eps = self.config.rms_norm_eps
        rotation = batch.rotation(self.cos, self.sin)
        normed = self._rms_norm(hidden, self.layers[0].attention_norm, eps)
        # A residual sum and the norm after it are one kernel; a layer's last one is the next layer's first.
        norms = [layer.attention_norm for layer in self.layers[1:]] + [self.norm]
        for layer, next_norm, (k_cache, v_cache) in zip(self.layers, norms, kv_cache, strict=True):
            qkv = linear(normed, layer.qkv)
            attended = batch.attend(qkv, rotation, k_cache, v_cache, self.config.num_heads)
            hidden, normed = self._add_rms_norm(hidden, linear(attended, layer.output), layer.mlp_norm, eps)
            gated = self._silu_mul(linear(normed, layer.gate_up))
            hidden, normed = self._add_rms_norm(hidden, linear(gated, layer.down), next_norm, eps)
        return normed

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """(R, vocab), from rows (R, H) of forward()'s result: fp32, or fp64 for an fp64 one; `out` if given.

        The product's sums are fp32 anyway; rounding them to bf16, whose neighbours lie 0.125 apart from 16
        on, would make ties of the best tokens.
        """
        if hidden.dtype == torch.bfloat16 and hidden.is_cuda:
            return torch.mm(hidden, self.head.t(), out_dtype=torch.float32, out=out)
        logits = linear(hidden, self.head)
        if out is not None:
            return out.copy_(logits)
        return logits if logits.dtype == torch.float64 else logits.float()
