"""Weights loaded by vLLM itself, in all the ways that run on a CPU: what integration_race.py measures in .venv-vllm.

The model is made before, so that its parameters are there and empty. What is timed is vLLM's own `load_weights`: the
files are read and copied into every parameter.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import model

SERVED = "served"
SHARDS = 2

# What a way is called here, and what vLLM is told.
FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    "auto": ("auto", {}),
    "multithread": ("auto", {"enable_multithread_load": True}),
    "fastsafetensors": ("fastsafetensors", {}),
    "runai": ("runai_streamer", {}),
    "penstock": ("penstock", {}),
}


def prepare(folder: Path, gib: float) -> int:
    """Writes a Llama of this size in two shards, and its configuration, all else that vLLM needs. Gives its bytes."""
    import penstock

    served = folder / SERVED
    served.mkdir(exist_ok=True)
    layers = model.layers_for(gib)
    whole = folder / "served.safetensors"
    written = model.ensure(whole, model.transformer(layers), 11)
    limit = written.nbytes // SHARDS + (model.VOCABULARY * model.HIDDEN * 2)
    penstock.save(penstock.load(whole), served / "model.safetensors", max_shard_size=limit, metadata={"format": "pt"})
    shards = len(list(served.glob("*.safetensors")))
    if shards != SHARDS:
        raise SystemExit(f"[bench] {served}: {SHARDS} shards were expected, there are {shards}")
    whole.unlink()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_size": model.HIDDEN,
        "intermediate_size": model.INTERMEDIATE,
        "num_hidden_layers": layers,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "vocab_size": model.VOCABULARY,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
    }
    (served / "config.json").write_text(json.dumps(config))
    return written.nbytes


def loading(folder: Path, way: str, make_ready: Callable[[Path], None]) -> float:
    """Seconds; `make_ready` drops the files from the page cache, or reads them into it."""
    os.environ.update({"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "GLOO_SOCKET_IFNAME": "lo"})
    os.environ.update({"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"})
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader import get_model_loader

    load_format, extra = FORMATS[way]
    if way == "fastsafetensors":
        on_the_cpu()
    arguments = EngineArgs(
        model=str(folder / SERVED),
        skip_tokenizer_init=True,
        load_format=load_format,
        model_loader_extra_config=extra,
        enforce_eager=True,
        max_model_len=64,
    )
    config = arguments.create_engine_config()
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, f"file://{folder / f'rendezvous-{os.getpid()}'}", 0, "gloo")
        initialize_model_parallel(1, 1)
        loader = get_model_loader(config.load_config)
        empty = empty_model(loader, config)
        make_ready(folder / SERVED)
        begin = time.monotonic()
        loader.load_weights(empty, config.model_config)
        return time.monotonic() - begin


def empty_model(loader: Any, config: Any) -> Any:
    import torch
    from vllm.utils.torch_utils import set_default_torch_dtype

    with set_default_torch_dtype(config.model_config.dtype), torch.device("cpu"):
        return loader.create_model(vllm_config=config, model_config=config.model_config)


def on_the_cpu() -> None:
    """vLLM asks fastsafetensors for a GPU whatever the platform is: "cuda:cpu", which torch refuses."""
    import torch
    from vllm.model_executor.model_loader import weight_utils

    class Torch:
        device = staticmethod(lambda name: torch.device("cpu" if name == "cuda:cpu" else name))
        __getattr__ = staticmethod(lambda name: getattr(torch, name))

    weight_utils.torch = Torch()
