"""One rank of a training by DeepSpeed: `python training_rank.py RANK JOB`, where JOB is JSON.

    world, stage, writer    how it trains, and "checkpoint.writer" of DeepSpeed's configuration; null leaves it out
    penstock                whether checkpoints are penstock's
    parts                   what it does, one after the other, each with an engine of its own:
        directory           where it saves, every EVERY steps, and goes on from `latest`
        load, tag           instead, where it loads from; then it saves nothing
        last                the step after which it ends
    kill                    [rank, the number of the checkpoint, where in it], or null

Prints a line of JSON for each step: the part, the step, the loss, and a digest of all parameters.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import sys
from typing import Any

rank, job = int(sys.argv[1]), json.loads(sys.argv[2])
world, stage = job["world"], job["stage"]
os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world))

if job["penstock"]:
    import penstock.fastpersist

    penstock.fastpersist.install_into_deepspeed()

import deepspeed  # noqa: E402
import torch  # noqa: E402

EVERY = 3
WIDTH = 48


def make_engine() -> Any:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Tanh(), torch.nn.Linear(4 * WIDTH, 8))
    config: dict[str, Any] = {
        "train_batch_size": 2 * world,
        "zero_optimization": {"stage": stage},
        "bf16": {"enabled": stage > 0},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    }
    if job["writer"] is not None:
        config["checkpoint"] = {"writer": job["writer"]}
    return deepspeed.initialize(model=model, config=config)[0]


def train(engine: Any, step: int) -> float:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    batch = torch.randn(2, WIDTH, generator=generator, dtype=torch.bfloat16 if stage else torch.float32)
    loss = engine(batch).float().pow(2).mean()
    engine.backward(loss)
    engine.step()
    return float(loss.detach())


def digest(engine: Any) -> str:
    parameters = list(engine.module.parameters())
    gathered = deepspeed.zero.GatheredParameters(parameters) if stage == 3 else contextlib.nullcontext()
    with gathered:
        pieces = [parameter.detach().float().numpy().tobytes() for parameter in parameters]
    return hashlib.sha256(b"".join(pieces)).hexdigest()[:16]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arrange_kill(rank_to_kill: int, checkpoint: int, where: str) -> None:
    """Has this rank killed in a checkpoint, by its number from 1."""
    from penstock.fastpersist import _deepspeed_engine as ours

    if rank_to_kill != rank:
        return
    engine_class: Any = ours.DeepSpeedCheckpointEngine
    begun = 0
    create, save, publish, commit = (
        engine_class.create,
        engine_class.save,
        engine_class._publish,
        ours.StagedDirectory.commit,
    )

    def counted_create(self: Any, info: Any) -> None:
        nonlocal begun
        begun += 1
        create(self, info)

    def killed(name: str, call: Any, *, after: bool) -> Any:
        def replaced(*arguments: Any, **named: Any) -> Any:
            if begun == checkpoint and where == name and not after:
                die()
            result = call(*arguments, **named)
            if begun == checkpoint and where == name and after:
                die()
            return result

        return replaced

    engine_class.create = counted_create
    engine_class.save = killed("after its first file", save, after=True)
    engine_class._publish = killed("with all files saved", publish, after=False)
    ours.StagedDirectory.commit = killed("with the tag named", commit, after=True)


def run(number: int, part: dict[str, Any]) -> None:
    engine = make_engine()
    source = part.get("load", part.get("directory"))
    step = 0
    if os.path.exists(os.path.join(source, "latest")):
        _, client = engine.load_checkpoint(source, tag=part.get("tag"))
        step = client["step"]
    while step < part["last"]:
        loss = train(engine, step)
        step += 1
        print(json.dumps([number, step, loss, digest(engine)]), flush=True)
        if job["kill"] == [rank, step, "in training"]:
            die()
        if "directory" in part and step % EVERY == 0:
            engine.save_checkpoint(part["directory"], client_state={"step": step})
    engine.destroy()


deepspeed.init_distributed("gloo")
if job["kill"] is not None:
    arrange_kill(*job["kill"])
for number, part in enumerate(job["parts"]):
    run(number, part)
