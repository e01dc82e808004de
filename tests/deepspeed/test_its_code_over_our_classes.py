"""DeepSpeed's own code over our classes: its engine with our writers, its writer with our handle."""

from __future__ import annotations

from pathlib import Path

import helpers
import pytest
import torch

ON_CPU = {"DS_ACCELERATOR": "cpu"}

STATE = """
    import sys, types, torch
    path, zipped = sys.argv[1], sys.argv[2] == "zip"
    state = {"layers": [torch.randn(300, 100 + i) for i in range(4)], "half": torch.randn(333).bfloat16(), "step": 7}
    torch.save(state, path + ".expected")
"""


def assert_saved(path: Path) -> None:
    found, expected = torch.load(path), torch.load(f"{path}.expected")
    assert found["step"] == expected["step"]
    for one, other in zip([*found["layers"], found["half"]], [*expected["layers"], expected["half"]], strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("format", ["zip", "legacy"])
@pytest.mark.parametrize("kind", ["FAST", "PYTHON", "MOCK"])
def test_its_checkpoint_engine_takes_our_writers(tmp_path: Path, format: str, kind: str) -> None:
    """FastCheckpointEngine and CheckpointWriterFactory as they are, over our writers and our aio handle."""
    script = (
        STATE
        + """
    from deepspeed.runtime.checkpoint_engine.fast_checkpoint_engine import FastCheckpointEngine
    from deepspeed.runtime.model_checkpointing import writer_factory
    from deepspeed.runtime.model_checkpointing.config import get_checkpoint_config
    from deepspeed.runtime.model_checkpointing.data_parallel_writer_factory import DataParallelWriterConfig
    from deepspeed.runtime.swap_tensor.aio_config import get_aio_config
    from penstock import fastpersist

    for name in ("FastFileWriter", "FastFileWriterConfig", "PyFileWriter", "MockFileWriter"):
        setattr(writer_factory, name, getattr(fastpersist, name))
    writer_factory.AsyncIOBuilder = lambda: types.SimpleNamespace(load=lambda: fastpersist.aio)
    accelerator = types.SimpleNamespace(pin_memory=lambda tensor, make_copy: tensor, is_pinned=lambda tensor: True)
    writer_factory.get_accelerator = lambda: accelerator
    settings = {"checkpoint_serialization": zipped, "writer": {"type": sys.argv[3], "show_statistics": True}}
    config = types.SimpleNamespace(
        checkpoint_config=get_checkpoint_config({"checkpoint": settings}), aio_config=get_aio_config({})
    )
    engine = FastCheckpointEngine(config, DataParallelWriterConfig(1, 0, 0, 0, True), optimize_dp_state=False)
    for _ in range(2):
        engine.save(state, path)
    assert engine.commit(None)
    """
    )
    path = tmp_path / "model.pt"
    result = helpers.run_python(script, str(path), format, kind, **ON_CPU)
    assert result.stdout.count("stats = {") == 2
    assert "'write_GB/s'" in result.stdout
    if kind != "MOCK":
        assert_saved(path)


@pytest.mark.parametrize("format", ["zip", "legacy"])
@pytest.mark.parametrize("double", ["double", "single"])
def test_its_writer_takes_our_handle(tmp_path: Path, format: str, double: str) -> None:
    """FastFileWriter and its buffers as they are, over our aio handle and its locked memory."""
    script = (
        STATE
        + """
    from deepspeed.io import FastFileWriter, FastFileWriterConfig, fast_file_writer
    from penstock.fastpersist import aio_handle

    # Its own is C++ that would have to be compiled here; it does this.
    cast = lambda tensors: [tensor.reshape(-1).view(torch.uint8) for tensor in tensors]
    fast_file_writer.UtilsBuilder = lambda: types.SimpleNamespace(
        load=lambda: types.SimpleNamespace(cast_to_byte_tensor=cast)
    )
    handle = aio_handle(2**20, 32, False, True, 1)
    buffer = handle.new_cpu_locked_tensor(2**20, torch.empty(0, dtype=torch.uint8))
    config = FastFileWriterConfig(handle, buffer, sys.argv[3] == "double")
    writer = FastFileWriter(path, config)
    torch.save(state, writer, _use_new_zipfile_serialization=zipped)
    writer.close()
    """
    )
    path = tmp_path / "model.pt"
    helpers.run_python(script, str(path), format, double, **ON_CPU)
    assert_saved(path)
