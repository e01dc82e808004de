"""Tests with SGLang's released wheel, as far as it imports without a GPU: `make test-vllm`.

SGLang's own are the registry of hooks, the command line, the configuration, the loader and the model that it fills.
Only generating is left out: the kernels for it have no wheel for CPUs. torchvision is a stand-in, which has the names
that SGLang imports and nothing behind them: the released one needs a torch with CUDA.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "shared"), str(TESTS / "repo")]
os.environ["HF_HUB_OFFLINE"] = "1"


class StandIn(ModuleType):
    """A module with an empty class for every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class TorchvisionFinder(MetaPathFinder, Loader):
    """Finds torchvision, and every module of it."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.split(".")[0] == "torchvision" else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def stand_in_for_torchvision() -> None:
    if find_spec("torchvision") is None:
        import_module("transformers")  # asks whether torchvision is there, and is to go without it
        sys.meta_path.append(TorchvisionFinder())


def pytest_configure(config: pytest.Config) -> None:
    # Those of SGLang and of torch are not ours to end.
    for rule in ("default", "ignore::DeprecationWarning", "ignore::UserWarning"):
        config.addinivalue_line("filterwarnings", rule)
    stand_in_for_torchvision()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    stand_in = any(isinstance(finder, TorchvisionFinder) for finder in sys.meta_path)
    torchvision = "a stand-in for torchvision" if stand_in else "its own torchvision"
    terminalreporter.write_line(f"SGLang {version('sglang')}: the released wheel, on the CPU, with {torchvision}")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in shards with a file that no index names, and in torch files."""
    import tiny_llama
    import torch

    folder = tmp_path_factory.mktemp("models")
    model = tiny_llama.make_model(folder / "shards", max_shard_size="200KB")
    (folder / "shards" / "stray.safetensors").write_bytes(b"no safetensors file")
    tiny_llama.make_model(folder / "bin")
    (folder / "bin" / "model.safetensors").unlink()
    torch.save(dict(model.state_dict()), folder / "bin" / "pytorch_model.bin")
    return folder
