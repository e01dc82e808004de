"""Saves checkpoints in the background of a training loop: it waits for a snapshot, not until bytes are written."""

import tempfile
from pathlib import Path

import penstock
import torch

folder = Path(tempfile.mkdtemp())
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
job = None

for step in range(1, 31):
    optimizer.zero_grad()
    loss = model(torch.randn(32, 256)).square().mean()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        if job is not None:
            job.wait()  # Raises here if the last save failed.
        job = penstock.save_async(model, folder / f"step-{step:03}.safetensors", metadata={"step": str(step)})
        job.staged()  # From here on the parameters may change.
        print(f"step {step}: loss {loss.item():.3f}, saving")

if job is not None:
    print("the last save took", round(job.wait().seconds, 4), "s")
print(sorted(path.name for path in folder.iterdir()))
