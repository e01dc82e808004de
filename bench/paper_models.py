"""The models of the fastsafetensors paper: their tensors as the published checkpoints have them, made smaller.

The numbers are those of the models' configuration files; names, order, element type and the number of shards are those
of the checkpoints. To fit a drive, every dimension is divided by one number, and layers and tensors stay as many.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from model import GIB, Tensor, split_evenly, tensor_nbytes

# Dimensions stay multiples of it, so that every one divides by the ranks.
GRANULE = 32

# Which dimension of a tensor is split among ranks, by glob; what none matches each rank has whole.
Plan = dict[str, int]


@dataclass(frozen=True)
class Architecture:
    """A model by its numbers. The widths of keys and values count all of their heads."""

    name: str
    family: str
    dtype: str
    shards: int
    layers: int
    hidden: int
    intermediate: int
    key_value: int
    vocabulary: int


ARCHITECTURES = (
    Architecture("Llama 7B", "llama", "F16", 2, 32, 4096, 11008, 4096, 32000),
    Architecture("Llama 13B", "llama", "F16", 3, 40, 5120, 13824, 5120, 32000),
    Architecture("Llama 70B", "llama", "F16", 15, 80, 8192, 28672, 1024, 32000),
    Architecture("Falcon 40B", "falcon", "BF16", 9, 60, 8192, 32768, 512, 65024),
    Architecture("Bloom 176B", "bloom", "BF16", 72, 70, 14336, 57344, 14336, 250880),
)

LLAMA_PLAN = {
    "model.embed_tokens.weight": 0,
    "*.q_proj.weight": 0,
    "*.k_proj.weight": 0,
    "*.v_proj.weight": 0,
    "*.o_proj.weight": 1,
    "*.gate_proj.weight": 0,
    "*.up_proj.weight": 0,
    "*.down_proj.weight": 1,
    "lm_head.weight": 0,
}
FALCON_PLAN = {
    "transformer.word_embeddings.weight": 0,
    "*.query_key_value.weight": 0,
    "*.self_attention.dense.weight": 1,
    "*.dense_h_to_4h.weight": 0,
    "*.dense_4h_to_h.weight": 1,
    "lm_head.weight": 0,
}
BLOOM_PLAN = {
    "word_embeddings.weight": 0,
    "*.query_key_value.weight": 0,
    "*.query_key_value.bias": 0,
    "*.self_attention.dense.weight": 1,
    "*.dense_h_to_4h.weight": 0,
    "*.dense_h_to_4h.bias": 0,
    "*.dense_4h_to_h.weight": 1,
}
PLANS: dict[str, Plan] = {"llama": LLAMA_PLAN, "falcon": FALCON_PLAN, "bloom": BLOOM_PLAN}

Shapes = dict[str, list[int]]


def llama_shapes(of: Architecture) -> Shapes:
    shapes: Shapes = {"model.embed_tokens.weight": [of.vocabulary, of.hidden]}
    for layer in range(of.layers):
        prefix = f"model.layers.{layer}."
        shapes |= {
            f"{prefix}self_attn.q_proj.weight": [of.hidden, of.hidden],
            f"{prefix}self_attn.k_proj.weight": [of.key_value, of.hidden],
            f"{prefix}self_attn.v_proj.weight": [of.key_value, of.hidden],
            f"{prefix}self_attn.o_proj.weight": [of.hidden, of.hidden],
            f"{prefix}mlp.gate_proj.weight": [of.intermediate, of.hidden],
            f"{prefix}mlp.up_proj.weight": [of.intermediate, of.hidden],
            f"{prefix}mlp.down_proj.weight": [of.hidden, of.intermediate],
            f"{prefix}input_layernorm.weight": [of.hidden],
            f"{prefix}post_attention_layernorm.weight": [of.hidden],
        }
    return shapes | {"model.norm.weight": [of.hidden], "lm_head.weight": [of.vocabulary, of.hidden]}


def norm(name: str, width: int) -> Shapes:
    """A layer norm with its bias."""
    return {f"{name}.weight": [width], f"{name}.bias": [width]}


def falcon_shapes(of: Architecture) -> Shapes:
    """Without biases but for the norms; queries, keys and values are one matrix."""
    shapes: Shapes = {"transformer.word_embeddings.weight": [of.vocabulary, of.hidden]}
    for layer in range(of.layers):
        prefix = f"transformer.h.{layer}."
        shapes |= {
            **norm(f"{prefix}ln_attn", of.hidden),
            **norm(f"{prefix}ln_mlp", of.hidden),
            f"{prefix}self_attention.query_key_value.weight": [of.hidden + 2 * of.key_value, of.hidden],
            f"{prefix}self_attention.dense.weight": [of.hidden, of.hidden],
            f"{prefix}mlp.dense_h_to_4h.weight": [of.intermediate, of.hidden],
            f"{prefix}mlp.dense_4h_to_h.weight": [of.hidden, of.intermediate],
        }
    return shapes | norm("transformer.ln_f", of.hidden) | {"lm_head.weight": [of.vocabulary, of.hidden]}


def linear(name: str, rows: int, columns: int) -> Shapes:
    """A matrix with its bias."""
    return {f"{name}.weight": [rows, columns], f"{name}.bias": [rows]}


def bloom_shapes(of: Architecture) -> Shapes:
    """Its head is the embedding, and not in the checkpoint."""
    shapes = {"word_embeddings.weight": [of.vocabulary, of.hidden], **norm("word_embeddings_layernorm", of.hidden)}
    for layer in range(of.layers):
        prefix = f"h.{layer}."
        shapes |= {
            **norm(f"{prefix}input_layernorm", of.hidden),
            **linear(f"{prefix}self_attention.query_key_value", of.hidden + 2 * of.key_value, of.hidden),
            **linear(f"{prefix}self_attention.dense", of.hidden, of.hidden),
            **norm(f"{prefix}post_attention_layernorm", of.hidden),
            **linear(f"{prefix}mlp.dense_h_to_4h", of.intermediate, of.hidden),
            **linear(f"{prefix}mlp.dense_4h_to_h", of.hidden, of.intermediate),
        }
    return shapes | norm("ln_f", of.hidden)


SHAPES: dict[str, Callable[[Architecture], Shapes]] = {
    "llama": llama_shapes,
    "falcon": falcon_shapes,
    "bloom": bloom_shapes,
}


def tensors_of(architecture: Architecture) -> list[Tensor]:
    """In the order of the model's modules, as checkpoints are split."""
    shapes = SHAPES[architecture.family](architecture)
    return [(name, architecture.dtype, shape) for name, shape in shapes.items()]


def nbytes_of(architecture: Architecture) -> int:
    return sum(map(tensor_nbytes, tensors_of(architecture)))


def shards_of(architecture: Architecture) -> list[list[Tensor]]:
    """Of about the same size, but for Bloom: the embedding, a shard for each layer, and the last norm."""
    tensors = tensors_of(architecture)
    if architecture.family != "bloom":
        return split_evenly(tensors, architecture.shards)
    groups: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        parts = tensor[0].split(".")
        groups.setdefault(".".join(parts[:2]) if parts[0] == "h" else parts[0].split("_")[0], []).append(tensor)
    return list(groups.values())


@dataclass(frozen=True)
class Scaled:
    """A model that was made smaller, and by how much."""

    architecture: Architecture
    divisor: float  # of every dimension
    factor: float  # of the bytes

    def in_words(self) -> str:
        nbytes, name = nbytes_of(self.architecture), self.architecture.name
        return (
            f"{name}: {nbytes * self.factor / GIB:.1f} GiB scaled down by {self.factor:.1f} to {nbytes / GIB:.2f} GiB "
            f"(dimensions by {self.divisor:.2f}; hidden size {self.architecture.hidden}), "
            f"{len(tensors_of(self.architecture))} tensors in {self.architecture.shards} shards"
        )


def divided(architecture: Architecture, divisor: float) -> Architecture:
    def smaller(extent: int) -> int:
        return max(1, round(extent / divisor / GRANULE)) * GRANULE

    return replace(
        architecture,
        hidden=smaller(architecture.hidden),
        intermediate=smaller(architecture.intermediate),
        key_value=smaller(architecture.key_value),
        vocabulary=smaller(architecture.vocabulary),
    )


def scaled_to(architecture: Architecture, nbytes: int) -> Scaled:
    """The largest that fits; a model that fits already stays as it is."""
    whole = nbytes_of(architecture)
    if whole <= nbytes:
        return Scaled(architecture, 1.0, 1.0)
    divisor = (whole / nbytes) ** 0.5
    while nbytes_of(divided(architecture, divisor)) > nbytes:
        divisor *= 1.005
    small = divided(architecture, divisor)
    return Scaled(small, divisor, whole / nbytes_of(small))
