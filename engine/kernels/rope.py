"""Rotary position embedding (Su et al., 2021, arXiv:2104.09864), HuggingFace pairing: (i, i + D/2)."""

import math

import torch

from engine.config import ModelConfig, RopeScaling


def inverse_frequencies(config: ModelConfig, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The D/2 angular frequencies (radians per position), Llama 3 scaling applied where configured."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).to(dtype) / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    return frequencies if config.rope_scaling is None else _llama3_scaled(frequencies, config.rope_scaling)


def _llama3_scaled(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Llama 3.1's long-context rule: long wavelengths are divided by `factor`, short ones kept, the band
    between them interpolated (Llama 3 model card and reference implementation)."""
    wavelengths = 2 * math.pi / frequencies
    longest_kept = scaling.original_max_position_embeddings / scaling.high_freq_factor
    shortest_scaled = scaling.original_max_position_embeddings / scaling.low_freq_factor
    share = (scaling.original_max_position_embeddings / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    scaled = frequencies / scaling.factor
    banded = (1 - share) * scaled + share * frequencies
    result = torch.where(wavelengths > shortest_scaled, scaled, frequencies)
    middle = (wavelengths <= shortest_scaled) & (wavelengths >= longest_kept)
    return torch.where(middle, banded, result)


def rope_table(config: ModelConfig, length: int, dtype: torch.dtype, device: str) -> tuple[torch.Tensor, ...]:
    """cos and sin, each (length, D), for positions 0 … length-1.

    Angles are computed in fp32 (fp64 for an fp64 model) and rounded to `dtype` once.
    """
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    positions = torch.arange(length, dtype=wide)
    angles = torch.outer(positions, inverse_frequencies(config, wide))
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(device, dtype), angles.sin().to(device, dtype)


def apply_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate x: (T, heads, D) by the rows cos, sin: (T, D) of its tokens' positions."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos[:, None] + turned * sin[:, None]
