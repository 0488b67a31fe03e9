"""From a checkpoint and a wish to an engine: device, dtype, context and KV cache size resolved."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from engine.config import PRESETS, ConfigError, EngineConfig, ModelConfig
from engine.model.checkpoint import load_checkpoint
from engine.model.llama import Llama
from engine.serving.engine import Engine

CPU_KV_BYTES = 1 << 30
GPU_MEMORY_SHARE = 0.85
# What a step needs beside weights and KV on a GPU: activations of the largest batch, fp32 logits, captured
# graphs. Left free inside the share.
GPU_WORKSPACE_BYTES = 2 << 30
# The host prepares one step while the GPU is busy with the one before; on a CPU both are the same processor.
QUEUED_STEPS = 2


@dataclass(frozen=True)
class EngineOptions:
    """What a user may ask for; None means the default for the device and the model."""

    model: Path
    device: str | None = None
    dtype: str | None = None
    max_model_len: int | None = None
    kv_cache_bytes: int | None = None
    gpu_memory_share: float | None = None
    max_num_seqs: int = 256
    max_batched_tokens: int = 2048
    prefix_cache: bool = True
    preset: str = "full"


def load_engine(options: EngineOptions) -> Engine:
    """Load the weights and set up an engine. Raises ConfigError with the value and the limit."""
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device not in ("cpu", "cuda"):
        raise ConfigError(f"device is {device!r}; known: cpu, cuda")
    if device == "cuda":
        _check_gpu()
    dtype_name = options.dtype or ("bfloat16" if device == "cuda" else "float32")
    if dtype_name not in ("float32", "bfloat16", "float64"):
        raise ConfigError(f"dtype is {dtype_name!r}; known: float32, bfloat16, float64")
    if options.preset not in PRESETS:
        raise ConfigError(f"preset is {options.preset!r}; known: {', '.join(PRESETS)}")
    preset = PRESETS[options.preset]
    dtype = getattr(torch, dtype_name)
    checkpoint = load_checkpoint(options.model)
    model_config = checkpoint.config
    trained = model_config.max_position_embeddings
    max_model_len = trained if options.max_model_len is None else options.max_model_len
    if not 2 <= max_model_len <= trained:
        raise ConfigError(f"max_model_len is {max_model_len}; the model allows 2 … {trained}")
    _check_room(checkpoint.tensors, dtype, device)
    model = Llama(model_config, checkpoint.tensors, device, dtype, max_model_len, fused=preset.paged)
    block_size = EngineConfig.block_size
    block_bytes = kv_bytes_per_token(model_config, dtype) * block_size
    kv_bytes = _kv_bytes(options, device)
    num_blocks = kv_bytes // block_bytes
    needed = -(-max_model_len // block_size) + 1
    if num_blocks < 2:
        raise ConfigError(f"{kv_bytes:,} bytes of KV cache hold no block; one takes {block_bytes:,} bytes")
    if options.max_model_len is not None and num_blocks < needed:
        raise ConfigError(
            f"{kv_bytes:,} bytes of KV cache hold {(num_blocks - 1) * block_size} tokens; max_model_len "
            f"{max_model_len} needs {needed * block_bytes:,} bytes"
        )
    config = EngineConfig(
        device=device,
        dtype=dtype_name,
        max_model_len=min(max_model_len, (num_blocks - 1) * block_size),
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_seqs=options.max_num_seqs,
        max_batched_tokens=options.max_batched_tokens,
        queue_depth=QUEUED_STEPS if device == "cuda" and preset.queued else 1,
        prefix_cache=options.prefix_cache,
        preset=preset,
    )
    return Engine(config, model)


def kv_bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of K and V of one position over all layers."""
    return config.num_layers * 2 * config.num_kv_heads * config.head_dim * dtype.itemsize


def _check_gpu() -> None:
    if not torch.cuda.is_available():
        raise ConfigError("device is 'cuda', but no CUDA device is usable; device 'cpu' works everywhere")
    capability = torch.cuda.get_device_capability()
    if capability < (8, 0):
        raise ConfigError(f"this GPU is sm_{capability[0]}{capability[1]}; bfloat16 needs sm_80 or newer")
    torch.backends.cuda.matmul.allow_tf32 = False
    # cuDNN builds an attention plan for every new length, and decoding meets a new one each step.
    torch.backends.cuda.enable_cudnn_sdp(False)


def _check_room(tensors: Mapping[str, torch.Tensor], dtype: torch.dtype, device: str) -> None:
    needed = sum(tensor.numel() for tensor in tensors.values()) * dtype.itemsize
    free, total = _memory(device)
    if needed > free:
        raise ConfigError(
            f"the weights take {needed:,} bytes as {str(dtype).removeprefix('torch.')}; "
            f"{free:,} of {total:,} bytes of {device} memory are free"
        )


def _memory(device: str) -> tuple[int, int]:
    """Bytes free now, and in all."""
    if device == "cuda":
        return torch.cuda.mem_get_info()
    memory = psutil.virtual_memory()
    return memory.available, memory.total


def _kv_bytes(options: EngineOptions, device: str) -> int:
    share = GPU_MEMORY_SHARE if options.gpu_memory_share is None else options.gpu_memory_share
    if not 0 < share <= 1:
        raise ConfigError(f"gpu_memory_share is {share}; it lies in (0, 1]")
    if device == "cpu" and options.gpu_memory_share is not None:
        raise ConfigError(f"gpu_memory_share is {share}, but the device is 'cpu'; kv_cache_bytes works there")
    free, total = _memory(device)
    wanted = options.kv_cache_bytes
    if wanted is None and device == "cpu":
        wanted = CPU_KV_BYTES
    if wanted is not None:
        if wanted > free:
            raise ConfigError(f"{wanted:,} bytes of KV cache; {free:,} bytes of {device} memory are free")
        return wanted
    budget = int(share * total) - (total - free) - GPU_WORKSPACE_BYTES
    if budget <= 0:
        raise ConfigError(
            f"{free:,} of {total:,} bytes of GPU memory are free after loading the weights; a share of "
            f"{share} leaves nothing for the KV cache beside {GPU_WORKSPACE_BYTES:,} bytes of workspace"
        )
    return budget
