"""Names and shapes of a Llama checkpoint's tensors (HuggingFace names), and the check against them."""

from collections.abc import Mapping

from engine.config import ConfigError, ModelConfig

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


class CheckpointError(ConfigError):
    """A checkpoint that cannot be used; the message names the file and, where one is at fault, the tensor."""


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of the model in file order, with its shape; matrices are (outputs, inputs).

    A tied model has no head of its own.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, hidden)}
    for i in range(config.num_layers):
        layer = f"model.layers.{i}"
        shapes |= {
            f"{layer}.input_layernorm.weight": (hidden,),
            f"{layer}.self_attn.q_proj.weight": (queries, hidden),
            f"{layer}.self_attn.k_proj.weight": (keys, hidden),
            f"{layer}.self_attn.v_proj.weight": (keys, hidden),
            f"{layer}.self_attn.o_proj.weight": (hidden, queries),
            f"{layer}.post_attention_layernorm.weight": (hidden,),
            f"{layer}.mlp.gate_proj.weight": (inner, hidden),
            f"{layer}.mlp.up_proj.weight": (inner, hidden),
            f"{layer}.mlp.down_proj.weight": (hidden, inner),
        }
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes[HEAD] = (config.vocab_size, hidden)
    return shapes


def check_shapes(source: str, config: ModelConfig, found: Mapping[str, tuple[int, ...]]) -> None:
    """Raise CheckpointError unless `found` is exactly the model's tensors."""
    expected = tensor_shapes(config)
    for name, shape in found.items():
        if name not in expected:
            why = (
                "layers with biases are not supported"
                if name.endswith(".bias")
                else "the config knows none of this name"
            )
            raise CheckpointError(f"{source}: tensor {name} of shape {shape} is unexpected: {why}")
        if shape != expected[name]:
            raise CheckpointError(
                f"{source}: tensor {name} has shape {shape}; the config needs {expected[name]}"
            )
    for name, shape in expected.items():
        if name not in found:
            raise CheckpointError(f"{source}: tensor {name} of shape {shape} is missing")
