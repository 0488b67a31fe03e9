"""The model a run serves: made ready by the engine's own command, hashed, described."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from harness.errors import BadInput
from harness.schema import ModelInfo
from harness.store import file_sha256
from harness.systems.environment import Interpreter


@dataclass(frozen=True)
class PreparedModel:
    """A HuggingFace folder that every system reads, and what the manifest says of it.

    `folder` is None for a model of which only servers that already run have files.
    """

    folder: Path | None
    info: ModelInfo


def prepare_model(name: str, interpreter: Interpreter, root: Path, *, for_engine: bool) -> PreparedModel:
    """`name` is a HuggingFace folder, or what `python -m engine prepare` makes one of: a name, a .gguf file.

    A folder that the engine is to serve is checked by the same command; other systems may read more.
    Raises BadInput with the engine's message when it cannot be made ready.
    """
    given = Path(name).is_dir() and not for_engine
    folder = Path(name) if given else _prepared_by_engine(name, interpreter, root)
    return PreparedModel(folder.resolve(), describe_model(name, folder))


def served_elsewhere(name: str) -> PreparedModel:
    """A model that is known by nothing but the name its server gives."""
    return PreparedModel(None, ModelInfo(name=name, weights="unknown", source="served by others", sha256={}))


def _prepared_by_engine(name: str, interpreter: Interpreter, root: Path) -> Path:
    done = subprocess.run(
        [str(interpreter.python), "-m", "engine", "prepare", name],
        capture_output=True,
        text=True,
        env=interpreter.process_environment(),
        cwd=root,
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise BadInput(f"model {name!r} cannot be prepared: {lines[-1].removeprefix('error: ')}")
    return Path(done.stdout.strip().splitlines()[-1])


def _is_random(folder: Path) -> bool:
    """Whether the engine made the weights up; it says so in config.json."""
    config = folder / "config.json"
    return config.is_file() and "llm_ladder_weights" in json.loads(config.read_bytes())


def describe_model(name: str, folder: Path) -> ModelInfo:
    """Name, origin and the SHA-256 of every file. A checkpoint that is given counts as real weights."""
    given = Path(name).exists()
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return ModelInfo(
        name=Path(name).stem if given else name,
        weights="random" if _is_random(folder) else "real",
        source=f"given: {folder.name}" if given else f"named model, prepared as {folder.name}",
        sha256={path.relative_to(folder).as_posix(): file_sha256(path) for path in files},
        shape=_shape(folder),
    )


def _shape(folder: Path) -> dict[str, int]:
    """The shape that config.json declares, by the names of schema.ModelInfo; empty for an unknown kind."""
    path = folder / "config.json"
    config = json.loads(path.read_bytes()) if path.is_file() else {}
    try:
        heads = config["num_attention_heads"]
        return {
            "layers": config["num_hidden_layers"],
            "hidden": config["hidden_size"],
            "heads": heads,
            "kv_heads": config.get("num_key_value_heads") or heads,
            "head_dim": config.get("head_dim") or config["hidden_size"] // heads,
            "intermediate": config["intermediate_size"],
            "vocab": config["vocab_size"],
            "tied": int(config.get("tie_word_embeddings", False)),
        }
    except KeyError:
        return {}
