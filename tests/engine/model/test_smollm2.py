"""The real default model, converted from the installed package: weights, config, tokenizer, answers."""

import functools
import itertools
import json
from pathlib import Path

import pytest
import regex
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.config import ModelConfig
from engine.model.checkpoint import Checkpoint, load_checkpoint
from engine.model.gguf_file import GgufFile, open_gguf
from engine.model.layout import tensor_shapes
from engine.model.named import packaged_gguf, prepare
from tests.engine.model.made import huggingface_rows
from tests.engine.model.test_gguf_file import dequantised

# Raise engine.model.named.CONVERSION when this has to change.
WEIGHTS_SHA256 = "4b654de12815db0a1975c3c7b31bb70cafc3eefd7c3198df92863fe750d6d2ce"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare("smollm2-135m", tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def checkpoint(folder: Path) -> Checkpoint:
    return load_checkpoint(folder)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@functools.cache
def the_file() -> GgufFile:
    return open_gguf(packaged_gguf("smollm2-135m"))


def test_config(checkpoint: Checkpoint) -> None:
    assert checkpoint.config == ModelConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        rms_norm_eps=1e-05,
        rope_theta=100000.0,
        rope_scaling=None,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_ids=(2,),
    )


def test_weights_are_the_pinned_ones(checkpoint: Checkpoint) -> None:
    assert checkpoint.sha256 == {"model.safetensors": WEIGHTS_SHA256}


def test_every_weight_is_the_files_rounded_to_bf16(checkpoint: Checkpoint) -> None:
    """By the block formats and row moves written out in the tests, not by the library's or the engine's."""
    layer = {
        "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj",
        "ffn_norm": "post_attention_layernorm", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    }  # fmt: skip
    top = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    seen = set()
    for stored in the_file().stored.values():
        name = top.get(stored.name)
        if name is None:
            _, index, part, _ = stored.name.split(".")
            name = f"model.layers.{index}.{layer[part]}.weight"
        shape = tuple(int(n) for n in reversed(stored.shape))
        weight = dequantised(stored.data.tobytes(), stored.tensor_type, shape)
        heads = 9 if "q_proj" in name else 3 if "k_proj" in name else None
        if heads:
            weight = huggingface_rows(weight, heads)
        assert torch.equal(checkpoint.tensors[name], torch.tensor(weight).bfloat16()), name
        seen.add(name)
    assert seen == tensor_shapes(checkpoint.config).keys() == checkpoint.tensors.keys()


TEXTS = [
    "The capital of France is",
    "x =  12\n    345\t6\r\n\r\n789",
    "def f(a, b):\n    return {'k': a[0] ** 2, \"s\": f'{b!r}'}  # done\n",
    "naïve café, Ελλάδα, Россия, 日本語のテキスト, العربية, हिन्दी, ½ Ⅷ ² ٣٤",
    "emoji 🙂👩‍👩‍👧 and 🇫🇷",
    "I'll don't WE'VE it's",
    "   leading, trailing   ",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|><repo_name>x<|im_start|",
    "",
    " ",
    "\n\n\n",
    "a" * 300,
]
ABSENT_BYTES = bytes.fromhex("04 06 13 14 16 1d c0 c1 f1 f2 f5 f6 f7 f8 f9 fa fb fc fd fe ff")


@functools.cache
def reference_vocabulary() -> tuple[dict[str, int], dict[tuple[str, str], int], regex.Pattern]:
    metadata = the_file().metadata
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    special = "|".join(regex.escape(token) for token in tokens[:17])
    return (
        {token: i for i, token in enumerate(tokens)},
        {pair: rank for rank, pair in enumerate(merges)},
        regex.compile(f"({special})"),
    )


def reference_ids(text: str) -> list[int]:
    """Byte-level BPE by the book: special tokens, single digits, GPT-2's pattern, lowest rank first."""
    vocabulary, ranks, special = reference_vocabulary()
    pattern = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {b: chr(b) for b in printable}
    letters |= {b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in letters)}
    ids = []
    for part in special.split(text):
        if special.fullmatch(part):
            ids.append(vocabulary[part])
            continue
        for piece in regex.split(r"(\p{N})", part):
            for word in regex.findall(pattern, piece):
                symbols = [letters[b] for b in word.encode() if letters[b] in vocabulary]
                while pairs := [p for p in itertools.pairwise(symbols) if p in ranks]:
                    best = min(pairs, key=ranks.__getitem__)
                    at = next(i for i, p in enumerate(itertools.pairwise(symbols)) if p == best)
                    symbols[at : at + 2] = ["".join(best)]
                ids += [vocabulary[symbol] for symbol in symbols]
    return ids


@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_those_of_bpe_by_the_book(text: str, tokenizer: Tokenizer) -> None:
    assert tokenizer.encode(text).ids == reference_ids(text)
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


@settings(deadline=None, max_examples=300)
@given(
    text=st.text(st.one_of(st.sampled_from(" \n\t'0123abcdé<|>_"), st.characters(codec="utf-8")), max_size=60)
)
@example(text="\x1d 5")
def test_any_text(text: str, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(text).ids
    assert ids == reference_ids(text)
    if not set(text.encode()) & set(ABSENT_BYTES):
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_the_vocabulary_lacks_some_bytes(tokenizer: Tokenizer) -> None:
    """Six control codes and the first bytes of the rarest planes: the model has no tokens for them."""
    assert len(set(ABSENT_BYTES)) == 21
    assert tokenizer.encode("a\x04b").tokens == ["a", "b"]
    without_its_first_byte = reference_ids("\U00040000")
    assert tokenizer.encode("\U00040000").ids == without_its_first_byte
    assert tokenizer.decode(without_its_first_byte) != "\U00040000"


def test_transformers_reads_the_same_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    theirs = AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        assert theirs(text).input_ids == ids
        assert theirs.decode(ids) == text
    assert len(theirs) == 49152
    special = (theirs.bos_token, theirs.eos_token, theirs.pad_token, theirs.unk_token)
    assert special == ("<|im_start|>", "<|im_end|>", "<|im_end|>", "<|endoftext|>")


def test_the_chat_template_renders(folder: Path) -> None:
    chat = [{"role": "user", "content": "Hi"}]
    text = AutoTokenizer.from_pretrained(folder).apply_chat_template(
        chat, tokenize=False, add_generation_prompt=True
    )
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_both_spellings_of_the_rope_settings(folder: Path) -> None:
    """`rope_parameters` is what transformers 5 reads; older readers look for `rope_theta`."""
    config = json.loads((folder / "config.json").read_text())
    assert config["rope_theta"] == 100000.0
    assert config["rope_parameters"] == {"rope_theta": 100000.0, "rope_type": "default"}
    assert config["dtype"] == config["torch_dtype"] == "bfloat16"


@pytest.mark.slow
def test_it_answers(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    ids = model.generate(**prompt, max_new_tokens=4, do_sample=False)
    assert tokenizer.decode(ids[0]).startswith("The capital of France is Paris.")


@pytest.mark.slow
def test_transformers_own_reading_of_the_gguf_file(checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
    """Weights equal bit for bit. The tokenizer is equal but for white space before digits and digits outside
    ASCII: transformers knows no split named "smollm" and keeps a number whole with the space before it, as
    GPT-2 does."""
    path = packaged_gguf("smollm2-135m")
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    theirs = model.state_dict()
    assert theirs.keys() - checkpoint.tensors.keys() == {"lm_head.weight"}
    for name, tensor in checkpoint.tensors.items():
        assert torch.equal(tensor, theirs[name].bfloat16()), name
    reader = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text in TEXTS:
        if not regex.search(r"\s\s\p{N}|[^\P{N}0-9]", text):
            assert reader(text).input_ids == tokenizer.encode(text).ids, text
    assert reader.tokenize("x =  12") == ["x", "Ġ=", "Ġ", "Ġ", "1", "2"]
    assert tokenizer.encode("x =  12").tokens == ["x", "Ġ=", "ĠĠ", "1", "2"]
