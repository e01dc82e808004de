"""Trains a model that may be killed at any moment: started again with the same directory, it goes on where it was.

    python train.py run --steps 200

Its losses are those of a run that nobody killed, bit for bit.
"""

import argparse
import random
import tempfile

import penstock
import torch

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("directory", nargs="?", help="where the checkpoints are (default: a temporary one)")
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--every", type=int, default=10, help="steps from one checkpoint to the next")
arguments = parser.parse_args()

torch.manual_seed(0)
random.seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.steps)
data = torch.randn(512, 16, generator=torch.Generator().manual_seed(1))
target = data.square().sum(dim=1, keepdim=True)
progress = {"epoch": 0, "order": []}  # the order: examples that are left of this epoch

state = {
    "model": model,
    "optimizer": optimizer,
    "scheduler": scheduler,
    "rng": penstock.Rng(),
    "progress": progress,
}
manager = penstock.CheckpointManager(arguments.directory or tempfile.mkdtemp(), keep=2)
saved = manager.restore(into=state)
first = saved.step + 1 if saved else 1
print(f"from step {first}")

with manager:
    for step in range(first, arguments.steps + 1):
        if not progress["order"]:
            progress["order"] = random.sample(range(len(data)), len(data))
            progress["epoch"] += 1
        batch, progress["order"] = progress["order"][:32], progress["order"][32:]
        optimizer.zero_grad()
        loss = (model(data[batch]) - target[batch]).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        print(f"step {step}: loss {loss.item()!r}", flush=True)
        if step % arguments.every == 0 or step == arguments.steps:
            manager.save_async(step, state)  # returns when a snapshot is taken

print("checkpoints:", manager.steps())
