"""A small Llama with random weights and a tokenizer that was trained on a few sentences: no model hub is needed."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "A river carries water from the mountains to the sea, and a penstock carries it to the mill.",
    "Weights are read from the drive, copied to memory, and multiplied a great many times.",
]
PROMPTS = ["The river carries", "A quick dog jumps", "Weights are"]


def make_tokenizer(folder: Path) -> int:
    """Trains and saves one; gives its number of tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=384, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    wrapped.save_pretrained(folder)
    return len(wrapped)


def make_model(folder: Path, *, max_shard_size: str = "50GB", **sizes: int) -> LlamaForCausalLM:
    """Writes config, tokenizer and weights in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = make_tokenizer(folder)
    arguments = {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": vocabulary,
        "max_position_embeddings": 256,
        **sizes,
    }
    config = LlamaConfig(**arguments, bos_token_id=0, eos_token_id=1, tie_word_embeddings=False)
    torch.manual_seed(1)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    with torch.no_grad():  # far from zero: tokens then depend on every weight
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return model
