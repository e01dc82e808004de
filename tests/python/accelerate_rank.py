"""One rank of test_accelerate_pretrained.py: a tensor-parallel load and save, by penstock and without it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import penstock
import torch
import torch.distributed as dist
from transformers import LlamaForCausalLM


def local_parts(model: Any) -> dict[str, torch.Tensor]:
    return {
        name: tensor.to_local() if hasattr(tensor, "to_local") else tensor
        for name, tensor in model.state_dict().items()
    }


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    with penstock.accelerate():
        ours = LlamaForCausalLM.from_pretrained(folder / "model", tp_plan="auto")
    report = penstock.accelerated()
    stock = local_parts(LlamaForCausalLM.from_pretrained(folder / "model", tp_plan="auto"))
    mine = local_parts(ours)
    split = [name for name, part in mine.items() if "q_proj" in name and part.shape[0] == 16]
    equal = list(mine) == list(stock) and all(torch.equal(mine[name], stock[name]) for name in stock)
    with penstock.accelerate():
        ours.save_pretrained(folder / "saved", is_main_process=rank == 0, max_shard_size="10KB")
        there = (folder / "saved" / "model.safetensors.index.json").exists()
    found = {
        "equal": equal and len(split) == 2,
        "served": report.served.get("safetensors.safe_open", 0),
        "fell": report.fell_through,
        "there_after_save": there,
    }
    (folder / f"rank{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(Path(sys.argv[1]))
