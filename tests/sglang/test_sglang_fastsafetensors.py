"""SGLang's own ``--load-format fastsafetensors`` on penstock, as far as a CPU goes.

SGLang's iterator asks for the device "cuda:RANK". The test says "cpu" there; all else that runs is SGLang's own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
from pathlib import Path

import conftest

conftest.stand_in_for_torchvision()
from penstock.fastsafetensors import install_as_fastsafetensors

install_as_fastsafetensors()
import torch
from safetensors.torch import load_file
from sglang.srt.model_loader import weight_utils


class Torch:
    device = staticmethod(lambda name: torch.device("cpu" if name.startswith("cuda:") else name))
    __getattr__ = staticmethod(lambda name: getattr(torch, name))


assert weight_utils.SafeTensorsFileLoader.__module__.startswith("penstock.fastsafetensors")
weight_utils.torch = Torch()
files = [str(path) for path in sorted(Path(sys.argv[1]).glob("model-*.safetensors"))]
expected = {name: tensor for path in files for name, tensor in load_file(path).items()}
weights = weight_utils.fastsafetensors_weights_iterator(files, enable_gds=True)
found = {name: tensor.clone() for name, tensor in weights}
assert found.keys() == expected.keys() and len(found) > 20
assert all(torch.equal(found[name], expected[name]) for name in expected)
print("equal")
"""


def test_its_iterator_runs_on_penstock_unchanged(models: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", PROGRAM, str(models / "shards")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-1] == "equal"
