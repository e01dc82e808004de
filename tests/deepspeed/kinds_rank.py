"""One of two ranks that train a pipeline or a mixture of experts: `python kinds_rank.py RANK DIRECTORY KIND`.

Saves after two steps, goes on for two, loads into a new engine, and does the same two. Prints what came of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import warnings
from typing import Any

rank, directory, kind = int(sys.argv[1]), sys.argv[2], sys.argv[3]
os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")

import penstock.fastpersist  # noqa: E402

penstock.fastpersist.install_into_deepspeed()

import deepspeed  # noqa: E402
import torch  # noqa: E402
from deepspeed.moe.layer import MoE  # noqa: E402
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer  # noqa: E402
from deepspeed.pipe import PipelineModule  # noqa: E402

WIDTH, TOKENS = 16, 8
CONFIG = {
    "train_micro_batch_size_per_gpu": TOKENS,
    "checkpoint": {"writer": {"type": "fast", "decoupled": True, "data_parallel": "replica"}},
}


class Experts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, WIDTH)
        expert = torch.nn.Linear(WIDTH, WIDTH)
        self.experts = MoE(WIDTH, expert, num_experts=2, ep_size=2, min_capacity=0, use_rts=False)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.experts(self.first(batch))[0]
        return output


def make() -> Any:
    torch.manual_seed(0)
    if kind == "experts":
        model: Any = Experts()
        groups = split_params_into_different_moe_groups_for_optimizer({"params": [*model.parameters()], "name": "all"})
    else:
        layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH)]
        model = PipelineModule(layers, num_stages=2, loss_fn=torch.nn.MSELoss(), partition_method="uniform")
        groups = [*model.parameters()]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=CONFIG)[0]


def train(engine: Any) -> float:
    batch = torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(rank))
    if kind == "pipeline":
        return float(engine.train_batch(iter([(torch.ones(TOKENS, WIDTH), torch.zeros(TOKENS, WIDTH))])))
    loss = engine(batch).pow(2).mean()
    engine.backward(loss)
    engine.step()
    return float(loss.detach())


def digest(engine: Any) -> str:
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in engine.module.parameters())).hexdigest()


deepspeed.init_distributed("gloo")
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    engine = make()
for _ in range(2):
    train(engine)
engine.save_checkpoint(directory, client_state={"step": 2})
saved = digest(engine)
losses = [train(engine) for _ in range(2)]
loaded = make()
_, client = loaded.load_checkpoint(directory)
found = {
    "told": [str(warning.message) for warning in told if "penstock" in str(warning.filename)],
    "saved": saved,
    "loaded": digest(loaded),
    "losses": losses,
    "resumed": [train(loaded) for _ in range(2)],
    "step": client["step"],
}
engine.destroy()
loaded.destroy()
print(json.dumps(found), flush=True)
