"""One rank of a training by DeepSpeed whose checkpoints are ours: trains, saves, trains on, and does the same again
from the checkpoint. Writes what came of it as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

rank, world, directory, stage, writer = (
    int(sys.argv[1]),
    int(sys.argv[2]),
    Path(sys.argv[3]),
    int(sys.argv[4]),
    sys.argv[5],
)
os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world))

import deepspeed  # noqa: E402
import deepspeed.runtime.engine as runtime  # noqa: E402
import torch  # noqa: E402
from penstock.fastpersist import CheckpointEngine  # noqa: E402

engines: list[CheckpointEngine] = []


def create(config_params: Any, groups: Any, zero_stage: int, has_moe_layers: bool, optimize_dp_state: bool) -> Any:
    engines.append(CheckpointEngine(config_params, None, optimize_dp_state, weights_only=False, timeout=60))
    return engines[-1]


def make() -> Any:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Linear(256, 8))
    config = {
        "train_batch_size": 2 * world,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "checkpoint": {"writer": json.loads(writer)},
    }
    return deepspeed.initialize(model=model, optimizer=torch.optim.Adam(model.parameters()), config=config)[0]


def train(engine: Any) -> float:
    loss = engine(torch.full((2, 64), rank + 1.0)).pow(2).mean()
    engine.backward(loss)
    engine.step()
    return float(loss.detach())


runtime.create_checkpoint_engine = create
deepspeed.init_distributed("gloo")
engine = make()
for _ in range(3):
    train(engine)
engine.save_checkpoint(str(directory), tag="a", client_state={"epoch": 7})
losses = [train(engine) for _ in range(2)]  # the first step commits a decoupled checkpoint
resumed = make()
_, client = resumed.load_checkpoint(str(directory), tag="a")
found = {
    "losses": losses,
    "resumed": [train(resumed) for _ in range(2)],
    "epoch": client["epoch"],
    "files": sorted(path.name for path in (directory / "a").iterdir()),
    "saved": sorted(os.path.basename(stats["path"]) for stats in engines[0].stats),
    "latest": (directory / "latest").read_text(),
}
engine.destroy()
(directory / f"outcome-{rank}").write_text(json.dumps(found))
