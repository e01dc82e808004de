"""Models of transformers and diffusers that are tiny and randomly initialised.

Skips the importing module without them.
"""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any

import numpy as np
import pytest
import torch

for _library in ("transformers", "diffusers", "huggingface_hub"):
    if importlib.util.find_spec(_library) is None:
        pytest.skip(f"{_library} is not installed", allow_module_level=True)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what these libraries import
    import diffusers
    import transformers
    from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
    from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

transformers.utils.logging.disable_progress_bar()
diffusers.utils.logging.disable_progress_bar()

TOKENS = torch.tensor([[3, 14, 15, 9, 2, 6]])


def llama(cls: Any = LlamaForCausalLM, *, tied: bool = False, words: int = 40) -> Any:
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=words,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=None,
    )
    return cls(config).eval()


def bert(cls: Any = BertModel) -> Any:
    torch.manual_seed(2)
    config = BertConfig(vocab_size=40, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48)
    return cls(config).eval()


def t5(cls: Any = T5ForConditionalGeneration) -> Any:
    torch.manual_seed(3)
    config = T5Config(vocab_size=40, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4, decoder_start_token_id=0)
    return cls(config).eval()


def unet(cls: Any = UNet2DModel) -> Any:
    torch.manual_seed(4)
    return cls(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        attention_head_dim=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ).eval()


def pipeline(cls: Any = DDPMPipeline, model: Any = None) -> Any:
    return cls(unet() if model is None else model, DDPMScheduler(num_train_timesteps=10))


def images(pipe: Any) -> np.ndarray[Any, Any]:
    """What a pipeline makes of a fixed seed."""
    pipe.set_progress_bar_config(disable=True)
    made = pipe(generator=torch.Generator().manual_seed(0), num_inference_steps=2, output_type="np").images
    assert isinstance(made, np.ndarray)
    return made


def assert_same_state(actual: Any, expected: Any) -> None:
    """Equal names, types, shapes and values."""
    found, wanted = actual.state_dict(), expected.state_dict()
    assert list(found) == list(wanted)
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name
