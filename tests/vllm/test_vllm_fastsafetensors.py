"""vLLM's own ``load_format="fastsafetensors"`` on penstock, as far as a CPU goes.

vLLM's iterator asks for the device "cuda:N", whatever the platform is, and torch refuses "cuda:cpu". The tests say
"cpu" there; every other line that runs is vLLM's own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
from types import SimpleNamespace

from penstock.fastsafetensors import install_as_fastsafetensors

install_as_fastsafetensors()
import torch
from vllm.config.load import LoadConfig
from vllm.model_executor.model_loader import DefaultModelLoader, get_model_loader, weight_utils


class Torch:
    device = staticmethod(lambda name: torch.device("cpu" if name.startswith("cuda:") else name))
    __getattr__ = staticmethod(lambda name: getattr(torch, name))


assert weight_utils.SingleGroup.__module__.startswith("penstock.fastsafetensors"), weight_utils.SingleGroup
weight_utils.torch = Torch()
source = DefaultModelLoader.Source(sys.argv[1], None)
loaders = [get_model_loader(LoadConfig(load_format=way)) for way in ("auto", "fastsafetensors")]
expected, found = (
    {name: tensor.clone() for name, tensor in loader._get_weights_iterator(source)} for loader in loaders
)
assert found.keys() == expected.keys() and len(found) > 20
assert all(torch.equal(found[name], expected[name]) for name in expected)
assert "fastsafetensors" in sys.modules and sys.modules["fastsafetensors"].__name__ == "penstock.fastsafetensors"
print("equal")
"""


def test_its_iterator_runs_on_penstock_unchanged(models: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(models / "shards")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-1] == "equal"
