"""penstock.accelerate: save_pretrained is killed at every step, over an older model: one of the two is there, whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import helpers
import penstock
import pytest
import tiny_models
import torch
from accelerate_helpers import decelerated
from transformers import LlamaForCausalLM

__all__ = ["decelerated"]


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(".penstock"))


def test_a_save_that_is_killed_leaves_the_old_model_or_the_new_one(tmp_path: Path) -> None:
    """Before and after every step of it, and at any moment."""
    program = Path(__file__).with_name("accelerate_killed.py")
    run = subprocess.run(
        [sys.executable, str(program), str(tmp_path)], capture_output=True, text=True, timeout=500, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    *kills, last = [json.loads(line) for line in run.stdout.splitlines()]
    assert all(kill["found"] in (kill["old"], kill["old"] + 1) for kill in kills)
    at_steps = [kill for kill in kills if kill["at"] > 0]
    steps = at_steps[0]["steps"]
    assert len(at_steps) == steps > 8
    assert all(kill["ended"] == 0 for kill in at_steps)
    # The last step but one is where publish() begins; at the last it has ended.
    assert [kill["found"] == kill["old"] for kill in at_steps] == [True] * (steps - 1) + [False]
    assert last["last"] == 1000
    shards = [name for name in last["names"] if name.endswith(".safetensors")]
    assert last["names"] == sorted(["config.json", "generation_config.json", "model.safetensors.index.json", *shards])


def test_the_folder_of_a_dead_saver_is_removed_and_that_of_a_living_one_is_not(tmp_path: Path) -> None:
    from penstock._accelerate._save_sets import SaveSet

    living = SaveSet(str(tmp_path))
    dead = tmp_path / ".penstock.saving-0123456789abcdef"
    dead.mkdir()
    (dead / "config.json").write_text("{}")
    with penstock.accelerate():
        tiny_models.llama().save_pretrained(tmp_path)
    assert leftovers(tmp_path) == [os.path.basename(living.folder)]
    living.close()
    assert leftovers(tmp_path) == []


def test_readers_meanwhile_see_one_model_or_the_other(tmp_path: Path) -> None:
    model = tiny_models.llama()

    def fill(value: float) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(value)

    fill(0)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    stop = threading.Event()
    seen, failures = set(), []

    def read() -> None:
        while not stop.is_set():
            try:
                tensors = penstock.load(tmp_path / "model.safetensors.index.json")
            except (penstock.NotFoundError, penstock.ChangedError):
                continue  # the set went while its files were opened
            values = {float(tensor.flatten()[0]) for tensor in tensors.values()}
            (seen.add if len(values) == 1 else failures.append)(values.pop())  # type: ignore[operator]

    reader = threading.Thread(target=read)
    reader.start()
    with penstock.accelerate():
        for value in range(1, 8):
            fill(value)
            model.save_pretrained(tmp_path, max_shard_size="20KB")
    stop.set()
    reader.join()
    assert failures == []
    assert seen


def test_a_full_disk_leaves_the_old_model(tmp_path: Path) -> None:
    with helpers.mounted_disk(tmp_path / "disk", "1m") as disk:
        tiny_models.llama().save_pretrained(disk, max_shard_size="20KB")
        old = {path.name: path.read_bytes() for path in disk.iterdir()}
        large = tiny_models.llama(words=20000)
        with penstock.accelerate(), pytest.raises(penstock.NoSpaceError):
            large.save_pretrained(disk, max_shard_size="400KB")
        assert {path.name: path.read_bytes() for path in disk.iterdir()} == old


def test_configurations_that_did_not_change_are_not_written_again(tmp_path: Path) -> None:
    model = tiny_models.llama()
    with penstock.accelerate():
        model.save_pretrained(tmp_path)
        config = (tmp_path / "config.json").stat()
        model.save_pretrained(tmp_path)
        assert (tmp_path / "config.json").stat().st_ino == config.st_ino
        model.config.use_cache = not model.config.use_cache
        model.save_pretrained(tmp_path)
    assert (tmp_path / "config.json").stat().st_ino != config.st_ino
    assert LlamaForCausalLM.from_pretrained(tmp_path).config.use_cache == model.config.use_cache
