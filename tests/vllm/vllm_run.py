"""Runs a model in vLLM, in one way after the other, and tells of each what it generates and what its parameters are.

python vllm_run.py '[{"model": DIRECTORY, "load_format": "penstock", ...}, ...]'
"""

from __future__ import annotations

import gc
import json
import sys
import zlib
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

MARK = "results: "


def digests(model: Any) -> dict[str, int]:
    """A number for each parameter, of all its bits."""
    import torch

    return {
        name: zlib.crc32(parameter.detach().contiguous().view(-1).view(torch.uint8).numpy())
        for name, parameter in model.named_parameters()
    }


def run(arguments: dict[str, Any]) -> dict[str, Any]:
    import tiny_llama
    from vllm import LLM, SamplingParams
    from vllm.distributed import cleanup_dist_env_and_memory

    server = LLM(**{"dtype": "bfloat16", "enforce_eager": True, "max_model_len": 64, **arguments})
    sampling = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    outputs = server.generate(tiny_llama.PROMPTS, sampling, use_tqdm=False)
    found = {
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "parameters": server.apply_model(digests),  # of each rank
    }
    del server
    gc.collect()
    cleanup_dist_env_and_memory()
    return found


if __name__ == "__main__":
    results = [run(arguments) for arguments in json.loads(sys.argv[1])]
    print(f"{MARK}{json.dumps(results)}", flush=True)
