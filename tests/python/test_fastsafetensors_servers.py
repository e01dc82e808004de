"""vLLM's and SGLang's own calls of fastsafetensors run on penstock, in one process and with ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastsafetensors_servers as servers
import helpers
import pytest
from penstock.fastsafetensors import SingleGroup, install_as_fastsafetensors, uninstall_as_fastsafetensors
from safetensors.torch import load_file

PATIENCE_SECONDS = 120


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return servers.write_files(tmp_path_factory.mktemp("model"))


@pytest.fixture
def installed() -> Iterator[None]:
    install_as_fastsafetensors()
    yield
    uninstall_as_fastsafetensors()


def expected(files: list[str]) -> dict[str, Any]:
    return {name: tensor for path in files for name, tensor in load_file(path).items()}


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("server", servers.SERVERS)
def test_a_server_loads_all_tensors_in_one_process(files: list[str], server: str) -> None:
    found = dict(servers.SERVERS[server](files, SingleGroup()))
    helpers.assert_same_tensors(found, expected(files))


@pytest.mark.usefixtures("installed")
def test_an_error_that_is_not_of_gds_reaches_vllm_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"absent\.safetensors") as caught:
        list(servers.vllm([str(tmp_path / "absent.safetensors")], SingleGroup()))
    assert "gds" not in str(caught.value)


@pytest.fixture(scope="module")
def ranks(files: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[tuple[str, str]]]]:
    """What each of two ranks got of each server's calls: names in order, and bytes."""
    directory = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, **helpers.rendezvous(), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, servers.__file__, str(directory), *files]
    running = [subprocess.Popen(command, env={**environment, "RANK": str(rank)}) for rank in range(2)]
    try:
        assert [process.wait(PATIENCE_SECONDS) for process in running] == [0, 0]
    finally:
        for process in running:
            process.kill()
            process.wait()
    return [json.loads((directory / f"rank-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("server", servers.SERVERS)
def test_every_rank_gets_every_tensor_in_the_same_order(
    files: list[str], ranks: list[dict[str, list[tuple[str, str]]]], server: str
) -> None:
    first, second = (rank[server] for rank in ranks)
    assert first == second
    assert len(first) == len(dict(first))
    assert dict(first) == {name: helpers.bits_of(tensor).hex() for name, tensor in expected(files).items()}
