"""Logits against transformers: our error to float64 is at most twice its own, and mutations are noticed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from engine.config import ModelConfig
from engine.model.batch import GatheredBatch, PagedBatch
from engine.model.checkpoint import load_checkpoint
from engine.model.llama import Llama
from engine.model.named import prepare

SHAPES = {
    "llama2_mha_untied": dict(num_attention_heads=4, num_key_value_heads=4, tie_word_embeddings=False),
    "gqa_2_tied": dict(num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True),
    "gqa_3_smollm2": dict(num_attention_heads=9, num_key_value_heads=3, hidden_size=144),
    "mqa": dict(num_attention_heads=6, num_key_value_heads=1, hidden_size=96),
    "explicit_head_dim": dict(num_attention_heads=4, num_key_value_heads=2, head_dim=32),
    "llama3_scaling": dict(
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        rope_parameters=dict(
            rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
            original_max_position_embeddings=64,
        ),
    ),
}  # fmt: skip


def our_logits(
    config: ModelConfig, tensors: dict[str, torch.Tensor], tokens: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """(T, vocab) logits of one sequence, computed as two prompt chunks over a cache of its own."""
    model = Llama(config, tensors, "cpu", dtype, len(tokens))
    shape = (config.num_layers, 2, len(tokens), config.num_kv_heads, config.head_dim)
    kv_cache = torch.zeros(shape, dtype=dtype)
    positions = torch.arange(len(tokens))
    none = torch.zeros(0, 0, dtype=torch.int64)
    cut, parts = max(1, len(tokens) // 3), []
    for first, last in ((0, cut), (cut, len(tokens))):
        mine = positions[first:last]
        chunk = ((0, last - first, positions[:last]),)
        batch = GatheredBatch(tokens[first:last], mine, mine, none, none.bool(), chunk)
        hidden = model.forward(batch, kv_cache)
        parts.append(model.logits(hidden))
    return torch.cat(parts)


def errors_and_agreement(
    reference: Callable[[torch.dtype], torch.nn.Module],
    config: ModelConfig,
    tensors: dict[str, torch.Tensor],
    tokens: torch.Tensor,
) -> tuple[float, float, bool]:
    """Largest |error| to float64 of ours and of transformers in fp32, and whether our argmax is right
    wherever the float64 top-2 gap exceeds 1e-3."""
    with torch.inference_mode():
        exact = reference(torch.float64)(tokens[None]).logits[0].double()
        theirs = reference(torch.float32)(tokens[None]).logits[0].double()
        ours = our_logits(config, tensors, tokens, torch.float32).double()
    top = exact.topk(2).values
    clear = (top[:, 0] - top[:, 1]) > 1e-3
    agree = bool((ours.argmax(-1) == exact.argmax(-1))[clear].all())
    return float((ours - exact).abs().max()), float((theirs - exact).abs().max()), agree


def random_model(name: str, folder: Path) -> Callable[[torch.dtype], torch.nn.Module]:
    torch.manual_seed(0)
    values = dict(
        vocab_size=512, hidden_size=128, intermediate_size=192, num_hidden_layers=3, rms_norm_eps=1e-5,
        max_position_embeddings=1024, initializer_range=0.2, tie_word_embeddings=False,
    )  # fmt: skip
    LlamaForCausalLM(LlamaConfig(**(values | SHAPES[name]))).save_pretrained(folder)
    return lambda dtype: AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("length", [48, 256, 1024])
def test_random_models_of_every_shape(name: str, length: int, tmp_path: Path) -> None:
    reference = random_model(name, tmp_path)
    checkpoint = load_checkpoint(tmp_path)
    tokens = torch.randint(512, (length,), generator=torch.Generator().manual_seed(length))
    ours, theirs, agree = errors_and_agreement(reference, checkpoint.config, checkpoint.tensors, tokens)
    assert ours <= 2 * theirs
    assert agree


@pytest.mark.parametrize("name", SHAPES)
def test_paged_and_gathered_batches_have_the_same_logits(name: str, tmp_path: Path) -> None:
    """Two sequences in blocks of three positions, in one batch: a chunk cut into items, then one row each."""
    random_model(name, tmp_path)
    checkpoint = load_checkpoint(tmp_path)
    config, length = checkpoint.config, 20
    tokens = torch.randint(512, (2, length), generator=torch.Generator().manual_seed(5))
    want = [our_logits(config, checkpoint.tensors, each, torch.float64) for each in tokens]
    model = Llama(config, checkpoint.tensors, "cpu", torch.float64, length)
    table = torch.tensor([[7, 2, 9, 4, 11, 0, 13], [1, 8, 3, 10, 5, 12, 6]])
    kv_cache = torch.full((config.num_layers, 2, 14 * 3, config.num_kv_heads, config.head_dim), float("nan"))
    kv_cache = kv_cache.double()
    got = []
    for first, last in ((0, length - 1), (length - 1, length)):
        count = last - first
        positions = torch.arange(first, last).repeat(2)
        slots = torch.arange(2).repeat_interleave(count)
        pieces = [(row + at, min(4, count - at)) for row in (0, count) for at in range(0, count, 4)]
        batch = PagedBatch(
            tokens=tokens[slots, positions],
            positions=positions,
            kv_slots=table[slots, positions // 3] * 3 + positions % 3,
            slots=slots,
            items=torch.tensor([*pieces, (0, 0)], dtype=torch.int32),
            longest_item=4,
            block_table=table,
            block_size=3,
            arrivals=torch.zeros(0, dtype=torch.int32),
        )
        got.append(model.logits(model.forward(batch, kv_cache)).view(2, count, -1))
    torch.testing.assert_close(torch.cat(got, dim=1), torch.stack(want), atol=1e-9, rtol=0)


@pytest.mark.parametrize("mutation", ["pairing", "gate_up", "theta", "norm"])
def test_a_mutated_model_is_noticed(mutation: str, tmp_path: Path) -> None:
    reference = random_model("gqa_2_tied", tmp_path)
    checkpoint = load_checkpoint(tmp_path)
    config, tensors = checkpoint.config, dict(checkpoint.tensors)
    layer = "model.layers.1"
    if mutation == "pairing":
        # What GGUF files hold: rotary pairs interleaved instead of half a head apart.
        q = tensors[f"{layer}.self_attn.q_proj.weight"]
        halves = q.reshape(config.num_heads, 2, config.head_dim // 2, -1)
        tensors[f"{layer}.self_attn.q_proj.weight"] = halves.transpose(1, 2).reshape(q.shape)
    elif mutation == "gate_up":
        gate, up = f"{layer}.mlp.gate_proj.weight", f"{layer}.mlp.up_proj.weight"
        tensors[gate], tensors[up] = tensors[up], tensors[gate]
    elif mutation == "theta":
        config = replace(config, rope_theta=config.rope_theta * 1.01)
    else:
        config = replace(config, rms_norm_eps=1e-3)
    tokens = torch.randint(512, (48,), generator=torch.Generator().manual_seed(1))
    ours, theirs, _ = errors_and_agreement(reference, config, tensors, tokens)
    assert ours > 10 * theirs


def text_tokens(length: int) -> torch.Tensor:
    from engine.model.tokenizer_file import load_tokenizer

    text = Path(__file__).read_text() * 2
    return torch.tensor(load_tokenizer(prepare("smollm2-135m")).encode(text).ids[:length])


@pytest.mark.parametrize(
    "length", [48, pytest.param(256, marks=pytest.mark.slow), pytest.param(1024, marks=pytest.mark.slow)]
)
def test_the_real_model(length: int) -> None:
    folder = prepare("smollm2-135m")
    checkpoint = load_checkpoint(folder)

    def reference(dtype: torch.dtype) -> torch.nn.Module:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()

    ours, theirs, agree = errors_and_agreement(
        reference, checkpoint.config, checkpoint.tensors, text_tokens(length)
    )
    print(f"smollm2-135m, {length} tokens: error to float64 {ours:.2e}, transformers' {theirs:.2e}")
    assert ours <= 2 * theirs
    assert agree


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("length", [48, 256, 1024])
def test_llama_190m_within_its_budget(length: int) -> None:
    """Random weights, logit scale about 2.4: at most 3.2e-5 from transformers, argmax equal everywhere."""
    folder = prepare("llama-190m")
    checkpoint = load_checkpoint(folder)
    tokens = torch.randint(32000, (length,), generator=torch.Generator().manual_seed(length))
    with torch.inference_mode():
        theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(tokens[None]).logits[0]
        ours = our_logits(checkpoint.config, checkpoint.tensors, tokens, torch.float32)
    print(f"llama-190m, {length} tokens: max |Δ| {(ours - theirs).abs().max():.2e}")
    assert (ours - theirs).abs().max() <= 3.2e-5
    assert torch.equal(ours.argmax(-1), theirs.argmax(-1))
