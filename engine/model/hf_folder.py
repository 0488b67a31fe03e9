"""Writing a HuggingFace model folder, one tensor in memory at a time."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

HF_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)
# A generous bound of everything but the weights: tokenizer.json of a vocabulary of 128,256 takes 17 MB.
BESIDE_WEIGHTS_BYTES = 20_000_000

_SAFETENSORS_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


@dataclass(frozen=True)
class HfFolder:
    """What a folder is to hold.

    shapes: every tensor in file order. tensor_of: a tensor by its name, any float type; stored as `dtype`.
    """

    config_json: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    tokenizer: Tokenizer
    tokenizer_config: Mapping[str, Any]
    dtype: torch.dtype
    shapes: Mapping[str, tuple[int, ...]]
    tensor_of: Callable[[str], torch.Tensor]

    @property
    def size(self) -> int:
        """Bytes on disk, rounded up."""
        return sum(map(prod, self.shapes.values())) * self.dtype.itemsize + BESIDE_WEIGHTS_BYTES

    def write(self, folder: Path, wrote: Callable[[int], None]) -> None:
        """Write HF_FILES into an empty folder, onto the disk; `wrote` hears of each tensor's bytes."""
        _write_json(folder / "config.json", self.config_json)
        _write_json(folder / "generation_config.json", self.generation_config)
        _write_json(folder / "tokenizer_config.json", self.tokenizer_config)
        _write(folder / "tokenizer.json", self.tokenizer.to_str(pretty=True).encode())
        self._write_weights(folder / "model.safetensors", wrote)

    def _write_weights(self, path: Path, wrote: Callable[[int], None]) -> None:
        """The safetensors format: length of the header (8 bytes), header (JSON), then the tensors' bytes."""
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name, shape in self.shapes.items():
            start, end = end, end + prod(shape) * self.dtype.itemsize
            header[name] = {
                "dtype": _SAFETENSORS_NAMES[self.dtype],
                "shape": shape,
                "data_offsets": (start, end),
            }
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with path.open("xb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for name in self.shapes:
                stored = self.tensor_of(name).to(self.dtype).contiguous()
                wrote(file.write(stored.view(-1).view(torch.uint8).numpy()))
            _to_disk(file)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    _write(path, (json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode())


def _write(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        _to_disk(file)


def _to_disk(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())
