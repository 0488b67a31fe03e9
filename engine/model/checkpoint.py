"""Reading a model's weights: a HuggingFace folder of safetensors, or a GGUF file."""

import hashlib
import json
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from engine.config import ConfigError, ModelConfig
from engine.model.gguf_file import open_gguf
from engine.model.layout import EMBEDDING, HEAD, CheckpointError, check_shapes, tensor_shapes

__all__ = ["Checkpoint", "CheckpointError", "load_checkpoint"]

FLOAT_TYPES = ("F64", "F32", "F16", "BF16")
# Rotary frequencies that old versions of transformers stored; they follow from the config.
DERIVED_SUFFIX = ".rotary_emb.inv_freq"


@dataclass(frozen=True)
class Checkpoint:
    """A model's config and weights.

    tensors: HuggingFace names, CPU, in the file's float type (float32 from a GGUF file); of a folder they are
    mapped from the files, not read yet. tokenizer_dir: the folder of tokenizer.json; None for a GGUF file,
    whose tokenizer `engine.model.named.prepare` writes out. files: what the weights were read from.
    """

    config: ModelConfig
    tensors: dict[str, torch.Tensor]
    tokenizer_dir: Path | None
    files: tuple[Path, ...]

    @cached_property
    def sha256(self) -> dict[str, str]:
        """SHA-256 of each weight file by its name; reads them whole, so computed when asked for."""
        return {file.name: file_sha256(file) for file in self.files}


def load_checkpoint(path: Path) -> Checkpoint:
    """The model in a HuggingFace folder (config.json + safetensors, sharded or not) or a .gguf file.

    Raises CheckpointError naming the file, and the tensor with its shapes where one is at fault.
    """
    if path.is_dir():
        return _load_folder(path)
    if not path.exists():
        raise CheckpointError(f"{path}: no such file or folder")
    if path.suffix != ".gguf":
        raise CheckpointError(f"{path}: a checkpoint is a HuggingFace folder or a .gguf file")
    gguf = open_gguf(path)
    tensors = {name: gguf.tensor(name) for name in tensor_shapes(gguf.config)}
    return Checkpoint(gguf.config, tensors, None, (path,))


def read_model_config(folder: Path) -> ModelConfig:
    """The config of a HuggingFace folder; generation_config.json is read where there is one."""
    generation = folder / "generation_config.json"
    try:
        return ModelConfig.from_hf(
            _read_json(folder / "config.json"), _read_json(generation) if generation.exists() else None
        )
    except CheckpointError:
        raise
    except ConfigError as error:
        raise CheckpointError(f"{folder / 'config.json'}: {error}") from None


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal. Raises CheckpointError for a file that cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None


def _load_folder(folder: Path) -> Checkpoint:
    config = read_model_config(folder)
    files = _weight_files(folder)
    tensors: dict[str, torch.Tensor] = {}
    with ExitStack() as stack:
        for file in files:
            for name, tensor in _mapped_tensors(file, stack).items():
                if name in tensors:
                    raise CheckpointError(f"{file}: tensor {name} is in another shard too")
                tensors[name] = tensor
    if config.tie_word_embeddings and HEAD in tensors:
        head = tensors.pop(HEAD)
        if EMBEDDING in tensors and not torch.equal(head, tensors[EMBEDDING]):
            raise CheckpointError(
                f"{folder}: {HEAD} differs from {EMBEDDING}, yet the config ties them (tie_word_embeddings)"
            )
    check_shapes(str(folder), config, {name: tuple(tensor.shape) for name, tensor in tensors.items()})
    return Checkpoint(config, tensors, folder, tuple(files))


def _mapped_tensors(file: Path, stack: ExitStack) -> dict[str, torch.Tensor]:
    try:
        weights = stack.enter_context(safe_open(file, framework="pt"))
        names = [name for name in weights.keys() if not name.endswith(DERIVED_SUFFIX)]  # noqa: SIM118
        for name in names:
            stored_as = weights.get_slice(name).get_dtype()
            if stored_as not in FLOAT_TYPES:
                raise CheckpointError(
                    f"{file}: tensor {name} is stored as {stored_as}; supported: {', '.join(FLOAT_TYPES)}"
                )
        return {name: weights.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file}: not a readable safetensors file ({error})") from None


def _weight_files(folder: Path) -> list[Path]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.exists():
        return [single]
    if index.exists():
        return _shards(index)
    pickles = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth"))
    if pickles:
        raise CheckpointError(
            f"{folder}: only pickle checkpoints here ({', '.join(pickles)}); they can run code when read and "
            "are not supported, convert them to model.safetensors"
        )
    raise CheckpointError(f"{folder}: neither model.safetensors nor model.safetensors.index.json is here")


def _shards(index: Path) -> list[Path]:
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: weight_map is {weight_map!r}; an object of tensor to file is needed")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise CheckpointError(
                f"{index}: tensor {name} is said to be in {shard!r}; "
                "a .safetensors file of this folder is needed"
            )
    shards = [index.parent / shard for shard in sorted(set(weight_map.values()))]
    missing = [shard.name for shard in shards if not shard.exists()]
    if missing:
        raise CheckpointError(
            f"{index.parent}: {len(missing)} of {len(shards)} shards missing: {missing[0]} …"
        )
    return shards


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: not a readable JSON file ({error})") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: holds a JSON {type(content).__name__}; an object is needed")
    return content
