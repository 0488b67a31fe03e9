"""What a model is and how an engine is sized; every limit is checked here, with a plain error."""

import math
from dataclasses import dataclass
from typing import Any


class ConfigError(ValueError):
    """A setting or a model that the engine does not take; the message names the value and the limit."""


@dataclass(frozen=True)
class RopeScaling:
    """The "llama3" frequency scaling of rotary positions (Llama 3.1 and 3.2)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class ModelConfig:
    """Shape and numerics of one Llama model.

    Sizes count elements; `head_dim` is the width of one attention head; `eos_token_ids` end a generation.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    max_position_embeddings: int
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]

    @staticmethod
    def from_hf(
        config_json: dict[str, Any], generation_config: dict[str, Any] | None = None
    ) -> "ModelConfig":
        """The model that a HuggingFace config.json describes.

        Rope settings are read from `rope_parameters` (transformers 5) or from `rope_theta` and
        `rope_scaling` (before). The end-of-sequence ids of `generation_config`, where given, win.
        Raises ConfigError naming the field for anything that is not a plain Llama causal language model.
        """
        _refuse_other_models(config_json)
        hidden_size = _positive_int(config_json, "hidden_size")
        num_heads = _positive_int(config_json, "num_attention_heads")
        num_kv_heads = _positive_int(config_json, "num_key_value_heads", default=num_heads)
        if num_heads % num_kv_heads:
            raise ConfigError(
                f"num_attention_heads is {num_heads}; it must be a multiple of "
                f"num_key_value_heads {num_kv_heads}"
            )
        if config_json.get("head_dim") is None and hidden_size % num_heads:
            raise ConfigError(
                f"hidden_size is {hidden_size}; without head_dim it must be a multiple of "
                f"num_attention_heads {num_heads}"
            )
        head_dim = _positive_int(config_json, "head_dim", default=hidden_size // num_heads)
        if head_dim % 2:
            raise ConfigError(f"head_dim is {head_dim}; rotary positions need an even one")
        vocab_size = _positive_int(config_json, "vocab_size")
        theta, scaling = _rope(config_json)
        return ModelConfig(
            vocab_size=vocab_size,
            hidden_size=hidden_size,
            intermediate_size=_positive_int(config_json, "intermediate_size"),
            num_layers=_positive_int(config_json, "num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            rms_norm_eps=_positive_float(config_json, "rms_norm_eps"),
            rope_theta=theta,
            rope_scaling=scaling,
            max_position_embeddings=_positive_int(config_json, "max_position_embeddings"),
            tie_word_embeddings=_flag(config_json, "tie_word_embeddings"),
            bos_token_id=_bos_token_id(config_json, vocab_size),
            eos_token_ids=_eos_token_ids(config_json, generation_config or {}, vocab_size),
        )


def _refuse_other_models(config_json: dict[str, Any]) -> None:
    architectures = config_json.get("architectures") or []
    model_type = config_json.get("model_type")
    if architectures not in ([], ["LlamaForCausalLM"]) or (not architectures and model_type != "llama"):
        raise ConfigError(
            f"architecture is {architectures or model_type!r}; only ['LlamaForCausalLM'] is supported"
        )
    if model_type not in (None, "llama"):
        raise ConfigError(f"model_type is {model_type!r}; only 'llama' is supported")
    for bias in ("attention_bias", "mlp_bias"):
        if _flag(config_json, bias):
            raise ConfigError(f"{bias} is true; layers with biases are not supported")
    activation = config_json.get("hidden_act", "silu")
    if activation != "silu":
        raise ConfigError(f"hidden_act is {activation!r}; only 'silu' is supported")
    if config_json.get("quantization_config") is not None:
        method = config_json["quantization_config"]
        method = method.get("quant_method", method) if isinstance(method, dict) else method
        raise ConfigError(f"quantization_config is {method!r}; only unquantised weights are supported")
    if config_json.get("auto_map") is not None:
        raise ConfigError(f"auto_map is {config_json['auto_map']!r}; code from checkpoints is never run")


def _rope(config_json: dict[str, Any]) -> tuple[float, RopeScaling | None]:
    parameters: dict[str, Any] = {}
    for name in ("rope_scaling", "rope_parameters"):
        section = config_json.get(name)
        if section is not None and not isinstance(section, dict):
            raise ConfigError(f"{name} is {section!r}; an object is needed")
        parameters |= section or {}
    theta_from = parameters if "rope_theta" in parameters else config_json
    theta = _positive_float(theta_from, "rope_theta", default=10000.0)
    for settings in (parameters, config_json):
        if settings.get("partial_rotary_factor") not in (None, 1, 1.0):
            raise ConfigError(
                f"partial_rotary_factor is {settings['partial_rotary_factor']!r}; only 1.0 is supported"
            )
    rope_type = parameters.get("rope_type", parameters.get("type", "default"))
    if rope_type == "default":
        return theta, None
    if rope_type != "llama3":
        raise ConfigError(f"rope type is {rope_type!r}; only 'default' and 'llama3' are supported")
    scaling = RopeScaling(
        factor=_positive_float(parameters, "factor"),
        low_freq_factor=_positive_float(parameters, "low_freq_factor"),
        high_freq_factor=_positive_float(parameters, "high_freq_factor"),
        original_max_position_embeddings=_positive_int(parameters, "original_max_position_embeddings"),
    )
    if scaling.low_freq_factor >= scaling.high_freq_factor:
        raise ConfigError(
            f"low_freq_factor is {scaling.low_freq_factor}; it must be below "
            f"high_freq_factor {scaling.high_freq_factor}"
        )
    return theta, scaling


def _bos_token_id(config_json: dict[str, Any], vocab_size: int) -> int | None:
    value = config_json.get("bos_token_id")
    return None if value is None else _token_id("bos_token_id", value, vocab_size)


def _eos_token_ids(
    config_json: dict[str, Any], generation_config: dict[str, Any], vocab_size: int
) -> tuple[int, ...]:
    value = generation_config.get("eos_token_id")
    if value is None:
        value = config_json.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    return tuple(_token_id("eos_token_id", i, vocab_size) for i in ids)


def _token_id(name: str, value: Any, vocab_size: int) -> int:
    if type(value) is not int or not 0 <= value < vocab_size:
        raise ConfigError(f"{name} is {value!r}; an integer from 0 to {vocab_size - 1} is needed")
    return value


def _positive_int(fields: dict[str, Any], name: str, default: int | None = None) -> int:
    value = _present(fields, name, default)
    if type(value) is not int or value < 1:
        raise ConfigError(f"{name} is {value!r}; an integer of at least 1 is needed")
    return value


def _positive_float(fields: dict[str, Any], name: str, default: float | None = None) -> float:
    value = _present(fields, name, default)
    if type(value) not in (int, float) or not math.isfinite(value) or value <= 0:
        raise ConfigError(f"{name} is {value!r}; a finite number above 0 is needed")
    return float(value)


def _flag(fields: dict[str, Any], name: str) -> bool:
    value = _present(fields, name, default=False)
    if type(value) is not bool:
        raise ConfigError(f"{name} is {value!r}; true or false is needed")
    return value


def _present(fields: dict[str, Any], name: str, default: Any) -> Any:
    value = fields.get(name)
    if value is None:
        value = default
    if value is None:
        raise ConfigError(f"{name} is missing")
    return value


@dataclass(frozen=True)
class Preset:
    """Which of the engine's steps towards speed are taken; only those in PRESETS are ever measured or served.

    paged: steps in padded shapes over Triton kernels that read the KV cache in place, on a GPU; without it
    each step gathers its histories and attends with PyTorch operations. graphs: such steps are captured and
    launched as CUDA graphs. queued: a step is queued on the GPU before the one before it is read.
    mixed: prompt chunks and decodes share a step; without it prompts come first, in steps of their own.
    """

    paged: bool
    graphs: bool
    queued: bool
    mixed: bool


PRESETS = {
    "eager": Preset(paged=False, graphs=False, queued=False, mixed=False),
    "fused": Preset(paged=True, graphs=False, queued=False, mixed=False),
    "graph": Preset(paged=True, graphs=True, queued=False, mixed=False),
    "queued": Preset(paged=True, graphs=True, queued=True, mixed=False),
    "full": Preset(paged=True, graphs=True, queued=True, mixed=True),
}
"""Each takes one step more than the one before it; `full` is what a user gets. On a CPU, where nothing is
paged, captured or queued, they differ in `mixed` alone."""


@dataclass(frozen=True)
class EngineConfig:
    """Sizes of one engine, all resolved; every limit is checked here.

    block_size: positions a KV block holds. num_blocks: KV blocks, block 0 (never used) included.
    max_num_seqs: sequences that hold a slot at once. max_batched_tokens: tokens one step computes.
    queue_depth: steps queued on the device before the oldest one's results are read.
    """

    device: str
    dtype: str
    max_model_len: int
    num_blocks: int
    block_size: int = 16
    max_num_seqs: int = 256
    max_batched_tokens: int = 2048
    queue_depth: int = 1
    prefix_cache: bool = True
    preset: Preset = PRESETS["full"]

    def __post_init__(self) -> None:
        for name in ("max_model_len", "block_size", "max_num_seqs", "max_batched_tokens", "queue_depth"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; at least 1 is needed")
        if self.num_blocks < 2:
            raise ConfigError(f"num_blocks is {self.num_blocks}; at least 2 are needed")
        if self.max_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_batched_tokens is {self.max_batched_tokens}, fewer than max_num_seqs "
                f"{self.max_num_seqs}: "
                "a step could not take one token of every sequence"
            )
