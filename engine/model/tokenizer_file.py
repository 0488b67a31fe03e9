"""The tokenizer of a HuggingFace folder."""

from pathlib import Path

from tokenizers import Tokenizer

from engine.model.layout import CheckpointError


def load_tokenizer(folder: Path) -> Tokenizer:
    """tokenizer.json of the folder; CheckpointError naming it when it is missing or cannot be read."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise CheckpointError(f"{path}: not a readable tokenizer: {error}") from error
