"""Names, folders and GGUF files to a HuggingFace folder that transformers reads as the model it came from."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer, LlamaForCausalLM

from engine.config import ConfigError
from engine.model import gguf_file, named
from engine.model.checkpoint import CheckpointError, load_checkpoint
from engine.model.hf_folder import HF_FILES
from engine.model.named import UnknownModel, prepare
from tests.engine.model.made import SHAPES, GgmlType, gguf_metadata, gguf_tensors, random_llama, write_gguf
from tests.engine.model.test_gguf_file import llama3_divisors

PROMPT = torch.tensor([[5, 77, 130, 9, 300, 41, 41, 2]])


def made_gguf(path: Path, model: LlamaForCausalLM, matrices_as: GgmlType = GgmlType.F32) -> Path:
    tensors = gguf_tensors(model)
    rope = model.config.rope_parameters
    if rope["rope_type"] == "llama3":
        tensors["rope_freqs.weight"] = llama3_divisors(
            model.config.head_dim, rope["rope_theta"], rope["factor"]
        )
    return write_gguf(path, gguf_metadata(model), tensors, matrices_as)


def logits_of(folder: Path) -> torch.Tensor:
    with torch.inference_mode():
        return LlamaForCausalLM.from_pretrained(folder)(PROMPT).logits


@pytest.mark.parametrize("shape", SHAPES)
def test_transformers_finds_the_same_model(shape: str, tmp_path: Path) -> None:
    model = random_llama(**SHAPES[shape])
    folder = prepare(str(made_gguf(tmp_path / "m.gguf", model)), tmp_path / "cache")
    with torch.inference_mode():
        expected = model(PROMPT).logits
    assert torch.equal(logits_of(folder), expected)
    assert load_checkpoint(folder).config.tie_word_embeddings == model.config.tie_word_embeddings


def test_skipping_the_row_order_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_llama(num_key_value_heads=2)
    monkeypatch.setattr(gguf_file, "unpermuted", lambda weight, heads: weight)
    folder = prepare(str(made_gguf(tmp_path / "m.gguf", model)), tmp_path / "cache")
    with torch.inference_mode():
        expected = model(PROMPT).logits
    assert (logits_of(folder) - expected).abs().max() > 0.1


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (GgmlType.F32, torch.float32),
        (GgmlType.F16, torch.float16),
        (GgmlType.BF16, torch.bfloat16),
        (GgmlType.Q8_0, torch.bfloat16),
        (GgmlType.Q4_1, torch.bfloat16),
    ],
)
def test_weights_keep_their_float_type(kind: GgmlType, dtype: torch.dtype, tmp_path: Path) -> None:
    path = made_gguf(tmp_path / "m.gguf", random_llama(), kind)
    written = load_checkpoint(prepare(str(path), tmp_path / "cache"))
    read = load_checkpoint(path)
    assert written.tensors.keys() == read.tensors.keys()
    for name, tensor in written.tensors.items():
        assert tensor.dtype == dtype
        assert torch.equal(tensor, read.tensors[name].to(dtype)), name
    assert written.config == read.config


def test_a_gguf_file_is_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made_gguf(tmp_path / "my model.gguf", random_llama())
    folder = prepare(str(path), tmp_path / "cache")
    assert folder.parent == tmp_path / "cache" / "models"
    assert folder.name.startswith("my model-")
    assert {p.name for p in folder.iterdir()} == {*HF_FILES, "SHA256SUMS"}
    monkeypatch.setattr(named, "open_gguf", lambda _: pytest.fail("converted again"))
    assert prepare(str(path), tmp_path / "cache") == folder


def test_the_same_bytes_each_time(tmp_path: Path) -> None:
    path = made_gguf(tmp_path / "m.gguf", random_llama(), GgmlType.Q4_0)
    one, two = (prepare(str(path), tmp_path / cache) for cache in ("one", "two"))
    for name in (*HF_FILES, "SHA256SUMS"):
        assert (one / name).read_bytes() == (two / name).read_bytes()


@pytest.mark.parametrize("layers", [1, 2, 3, 10])
def test_weights_start_at_a_multiple_of_eight_bytes(layers: int, tmp_path: Path) -> None:
    path = made_gguf(tmp_path / "m.gguf", random_llama(num_hidden_layers=layers))
    with (prepare(str(path), tmp_path / "cache") / "model.safetensors").open("rb") as file:
        assert int.from_bytes(file.read(8), "little") % 8 == 0


def test_another_file_gets_another_folder(tmp_path: Path) -> None:
    model = random_llama()
    first = prepare(str(made_gguf(tmp_path / "m.gguf", model)), tmp_path / "cache")
    second = prepare(str(made_gguf(tmp_path / "m.gguf", model, GgmlType.Q8_0)), tmp_path / "cache")
    assert first != second
    assert first.is_dir()


def test_the_tokenizer_reads_in_transformers_as_in_tokenizers(tmp_path: Path) -> None:
    folder = prepare(str(made_gguf(tmp_path / "m.gguf", random_llama())), tmp_path / "cache")
    ours, theirs = Tokenizer.from_file(str(folder / "tokenizer.json")), AutoTokenizer.from_pretrained(folder)
    for text in ["", "the  12 rates", "a<|turn|>é 日本"]:
        assert theirs(text).input_ids == ours.encode(text).ids
    assert (theirs.bos_token, theirs.eos_token) == ("<|turn|>", "<|end|>")


def test_a_folder_passes_through(tmp_path: Path) -> None:
    random_llama().save_pretrained(tmp_path / "model")
    assert prepare(str(tmp_path / "model"), tmp_path / "cache") == tmp_path / "model"
    assert not (tmp_path / "cache").exists()


def test_an_unknown_name_lists_those_known(tmp_path: Path) -> None:
    with pytest.raises(UnknownModel, match=r"'llama-9000b'; known: smollm2-135m") as refusal:
        prepare("llama-9000b", tmp_path)
    assert isinstance(refusal.value, ConfigError)


@pytest.mark.parametrize("name", ["nowhere/model", "model.gguf", "/nowhere"])
def test_a_path_that_leads_nowhere(name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"{name}: no such file or folder"):
        prepare(name, tmp_path)


def test_a_file_that_is_not_gguf(tmp_path: Path) -> None:
    file = tmp_path / "model.bin"
    file.write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"model.bin: a model file is a .gguf file"):
        prepare(str(file), tmp_path / "cache")


def test_a_broken_gguf_file_leaves_nothing(tmp_path: Path) -> None:
    path = made_gguf(tmp_path / "m.gguf", random_llama())
    path.write_bytes(path.read_bytes()[:-4096])
    with pytest.raises(CheckpointError, match=r"m.gguf: not a readable GGUF file"):
        prepare(str(path), tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_vocabulary_that_cannot_be_rebuilt_names_the_file(tmp_path: Path) -> None:
    model = random_llama()
    metadata = gguf_metadata(model) | {"tokenizer.ggml.pre": "tekken"}
    path = write_gguf(tmp_path / "m.gguf", metadata, gguf_tensors(model))
    with pytest.raises(CheckpointError, match=r"m.gguf: tokenizer.ggml.pre is 'tekken'"):
        prepare(str(path), tmp_path / "cache")


def test_a_packaged_model_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(named.PACKAGED, "smollm2-135m", "no_such_package")
    with pytest.raises(ConfigError, match=r"smollm2-135m .* no_such_package, which is not installed"):
        prepare("smollm2-135m", tmp_path)
