"""ModelConfig: what is read out of config.json, and what is refused by name."""

import pytest

from engine.config import ConfigError, ModelConfig, RopeScaling

LLAMA_2 = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rope_scaling": None,
    "pretraining_tp": 1,
}
LLAMA_32 = LLAMA_2 | {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
}


def test_llama_2_without_the_newer_fields() -> None:
    assert ModelConfig.from_hf(LLAMA_2) == ModelConfig(
        vocab_size=32000,
        hidden_size=4096,
        intermediate_size=11008,
        num_layers=32,
        num_heads=32,
        num_kv_heads=32,
        head_dim=128,
        rms_norm_eps=1e-05,
        rope_theta=10000.0,
        rope_scaling=None,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_ids=(2,),
    )


def test_llama_32() -> None:
    config = ModelConfig.from_hf(LLAMA_32)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (32, 8, 64)
    assert config.rope_theta == 500000.0
    assert config.rope_scaling == RopeScaling(32.0, 1.0, 4.0, 8192)
    assert config.eos_token_ids == (128001, 128008, 128009)
    assert config.tie_word_embeddings


def test_rope_as_transformers_5_writes_it() -> None:
    new = {k: v for k, v in LLAMA_32.items() if k not in ("rope_theta", "rope_scaling")}
    new["rope_parameters"] = LLAMA_32["rope_scaling"] | {"rope_theta": 500000.0}
    assert ModelConfig.from_hf(new) == ModelConfig.from_hf(LLAMA_32)


def test_rope_type_under_its_old_key() -> None:
    scaling = {k: v for k, v in LLAMA_32["rope_scaling"].items() if k != "rope_type"} | {"type": "llama3"}
    assert ModelConfig.from_hf(LLAMA_32 | {"rope_scaling": scaling}) == ModelConfig.from_hf(LLAMA_32)


def test_head_dim_may_differ_from_the_share_of_the_width() -> None:
    assert ModelConfig.from_hf(LLAMA_2 | {"head_dim": 96}).head_dim == 96
    assert ModelConfig.from_hf(LLAMA_2 | {"hidden_size": 100, "head_dim": 8}).head_dim == 8


@pytest.mark.parametrize(
    ("config_eos", "generation", "expected"),
    [
        (2, None, (2,)),
        (2, {"eos_token_id": [2, 7]}, (2, 7)),
        ([3, 4], {"eos_token_id": 7}, (7,)),
        ([3, 4], {"temperature": 0.6}, (3, 4)),
        (None, None, ()),
    ],
)
def test_generation_config_decides_where_a_text_ends(
    config_eos: object, generation: dict | None, expected: tuple[int, ...]
) -> None:
    assert ModelConfig.from_hf(LLAMA_2 | {"eos_token_id": config_eos}, generation).eos_token_ids == expected


LLAMA_3_SCALING = LLAMA_32["rope_scaling"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architectures": ["MistralForCausalLM"], "model_type": "mistral"}, "MistralForCausalLM"),
        ({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}, "Qwen2ForCausalLM"),
        ({"architectures": ["Phi3ForCausalLM"], "model_type": "phi3"}, "Phi3ForCausalLM"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"architectures": None, "model_type": "gemma"}, "gemma"),
        ({"architectures": None, "model_type": None}, "architecture is None"),
        ({"model_type": "mistral"}, "model_type is 'mistral'"),
        ({"attention_bias": True}, "attention_bias is true"),
        ({"mlp_bias": True}, "mlp_bias is true"),
        ({"mlp_bias": "no"}, "mlp_bias is 'no'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantization_config is 'gptq'"),
        ({"quantization_config": "fp8"}, "quantization_config is 'fp8'"),
        ({"auto_map": {"AutoModelForCausalLM": "modeling.Mine"}}, "auto_map"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "4096"}, "hidden_size is '4096'"),
        ({"hidden_size": 4096.0}, "hidden_size is 4096.0"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"vocab_size": -1}, "vocab_size is -1"),
        ({"max_position_embeddings": None}, "max_position_embeddings is missing"),
        ({"num_key_value_heads": 5}, "num_attention_heads is 32; it must be a multiple of .* 5"),
        ({"hidden_size": 100}, "hidden_size is 100"),
        ({"head_dim": 7}, "head_dim is 7"),
        ({"rms_norm_eps": None}, "rms_norm_eps is missing"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"rope_theta": "big"}, "rope_theta is 'big'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope type is 'linear'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope type is 'yarn'"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope type is 'dynamic'"),
        ({"rope_scaling": "llama3"}, "rope_scaling is 'llama3'"),
        ({"rope_scaling": LLAMA_3_SCALING | {"factor": None}}, "factor is missing"),
        ({"rope_scaling": LLAMA_3_SCALING | {"low_freq_factor": 4.0}}, "low_freq_factor is 4.0"),
        ({"rope_scaling": LLAMA_3_SCALING | {"original_max_position_embeddings": 1.5}}, "original_max"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
        ({"bos_token_id": 32000}, "bos_token_id is 32000; an integer from 0 to 31999"),
        ({"eos_token_id": [2, -1]}, "eos_token_id is -1"),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>'"),
    ],
)
def test_refused_by_name(change: dict, named: str) -> None:
    with pytest.raises(ConfigError, match=named.replace("[", r"\[")):
        ModelConfig.from_hf(LLAMA_2 | change)
