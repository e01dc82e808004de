"""Checkpoints to save: random weights in the shapes of known models, with Adam's state beside them if wanted.

Nothing is downloaded: names and shapes follow the models' public configurations. Tied names are there once. A scale makes a
model smaller and keeps its number of tensors: every extent shrinks by the root of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from model import gpt2_shapes

if TYPE_CHECKING:
    import torch

Shapes = dict[str, list[int]]
POOL_ELEMENTS = 1 << 22
STEP = 8  # extents stay multiples of it


def tiny_t5(extent: Callable[[int], int]) -> Shapes:
    width, inner, heads_width, vocabulary = extent(32), extent(40), extent(32), extent(1103)
    shapes = {"shared.weight": [vocabulary, width], "lm_head.weight": [vocabulary, width]}
    for stack, attentions in (("encoder", ["SelfAttention"]), ("decoder", ["SelfAttention", "EncDecAttention"])):
        shapes[f"{stack}.final_layer_norm.weight"] = [width]
        for block in range(5):
            prefix = f"{stack}.block.{block}.layer"
            for number, attention in enumerate(attentions):
                shapes |= {f"{prefix}.{number}.{attention}.{part}.weight": [heads_width, width] for part in "qkv"}
                shapes[f"{prefix}.{number}.{attention}.o.weight"] = [width, heads_width]
                shapes[f"{prefix}.{number}.layer_norm.weight"] = [width]
            shapes[f"{prefix}.{len(attentions)}.DenseReluDense.wi.weight"] = [inner, width]
            shapes[f"{prefix}.{len(attentions)}.DenseReluDense.wo.weight"] = [width, inner]
            shapes[f"{prefix}.{len(attentions)}.layer_norm.weight"] = [width]
    return shapes


def gpt2_large(extent: Callable[[int], int]) -> Shapes:
    return gpt2_shapes(extent(1280), 36, extent(50257), extent(1024))


def phi3(extent: Callable[[int], int]) -> Shapes:
    """The one of 3.8 billion parameters."""
    width, inner, vocabulary = extent(3072), extent(8192), extent(32064)
    layer = {
        "self_attn.qkv_proj.weight": [3 * width, width],
        "self_attn.o_proj.weight": [width, width],
        "mlp.gate_up_proj.weight": [2 * inner, width],
        "mlp.down_proj.weight": [width, inner],
    }
    return _decoder(layer, 32, width, vocabulary)


def llama(extent: Callable[[int], int]) -> Shapes:
    """The second's 7 billion parameters."""
    width, inner, vocabulary = extent(4096), extent(11008), extent(32000)
    layer = {f"self_attn.{part}_proj.weight": [width, width] for part in "qkvo"}
    layer |= {f"mlp.{part}_proj.weight": [inner, width] for part in ("gate", "up")}
    layer["mlp.down_proj.weight"] = [width, inner]
    return _decoder(layer, 32, width, vocabulary)


def _decoder(layer: Shapes, layers: int, width: int, vocabulary: int) -> Shapes:
    shapes = {"model.embed_tokens.weight": [vocabulary, width], "model.norm.weight": [width]}
    for number in range(layers):
        prefix = f"model.layers.{number}."
        shapes |= {prefix + name: shape for name, shape in layer.items()}
        shapes |= {f"{prefix}{norm}_layernorm.weight": [width] for norm in ("input", "post_attention")}
    shapes["lm_head.weight"] = [vocabulary, width]
    return shapes


MODELS = {"tiny-t5": tiny_t5, "gpt2-large": gpt2_large, "phi3": phi3, "llama": llama}


def shapes_of(model: str, scale: float) -> Shapes:
    def extent(full: int) -> int:
        return full if scale == 1 else max(STEP, round(full * math.sqrt(scale) / STEP) * STEP)

    return MODELS[model](extent)


def nbytes_of(model: str, scale: float, half: bool, optimizer: bool) -> int:
    """About what a checkpoint holds."""
    elements = sum(math.prod(shape) for shape in shapes_of(model, scale).values())
    return elements * (2 if half else 4) * (3 if optimizer else 1)


def make_checkpoint(model: str, scale: float, half: bool, optimizer: bool) -> dict[str, Any]:
    """A state dict; with the optimizer, a dict of two."""
    import torch

    shapes = shapes_of(model, scale)
    draw = _draws(torch.float16 if half else torch.float32)
    weights = {name: draw(shape) for name, shape in shapes.items()}
    if not optimizer:
        return weights
    moments = {
        number: {"step": torch.tensor(100.0), "exp_avg": draw(shape), "exp_avg_sq": draw(shape)}
        for number, shape in enumerate(shapes.values())
    }
    group = {"lr": 1e-4, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0, "params": list(moments)}
    return {"model": weights, "optimizer": {"state": moments, "param_groups": [group]}}


def _draws(dtype: torch.dtype) -> Callable[[list[int]], torch.Tensor]:
    """Tensors cut from one pool of random numbers, each from another place: quick to make, and none like the next."""
    import torch

    pool = torch.randn(POOL_ELEMENTS, generator=torch.Generator().manual_seed(1)).to(dtype).repeat(2)
    drawn = 0

    def draw(shape: list[int]) -> torch.Tensor:
        nonlocal drawn
        drawn += 1
        tensor = torch.empty(shape, dtype=dtype)
        begin = 7919 * drawn % POOL_ELEMENTS
        for piece in tensor.view(-1).split(POOL_ELEMENTS):
            piece.copy_(pool[begin : begin + piece.numel()])
        return tensor

    return draw


def named_tensors(tree: Any, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """What a format without trees can hold of a checkpoint."""
    import torch

    if isinstance(tree, torch.Tensor):
        yield prefix or "tensor", tree
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from named_tensors(value, f"{prefix}.{key}" if prefix else str(key))
