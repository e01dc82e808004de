"""fastpersist_save and its legacy twin."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import helpers
import penstock
import pytest
import torch
from penstock.fastpersist import fastpersist_save, fastpersist_save_legacy, get_aio_handle, get_pinned_buffer
from penstock.fastpersist.stats import BASE_KEYS, FAST_KEYS, STORAGE_KEYS
from trees import assert_same_trees

SAVES = pytest.mark.parametrize("save", [fastpersist_save, fastpersist_save_legacy])


def state() -> dict[str, Any]:
    large = torch.arange(2.0**19)
    return {"large": large, "view": large[5:], "small": torch.ones(3, dtype=torch.bfloat16), "step": 3}


@SAVES
def test_the_result_is_a_file_for_torch(save: Any, tmp_path: Path, no_leaks: None) -> None:
    path = tmp_path / "model.pt"
    save(state(), path)
    assert_same_trees(torch.load(path), state())
    with open(path, "rb") as file:
        assert (file.read(2) == b"PK") == (save is fastpersist_save)


@SAVES
def test_the_statistics_are_true(save: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    stats = save(state(), str(path))
    assert set(stats) >= {*BASE_KEYS, *STORAGE_KEYS, *FAST_KEYS, "path"}
    assert stats["path"] == str(path)
    assert stats["bytes"] == path.stat().st_size
    assert stats["aio_bytes"] + stats["slow_bytes"] == stats["bytes"]
    assert (stats["save_storage"], stats["save_storage_bytes"]) == (2, 4 * 2**19 + 2 * 3)
    assert stats["aio_write_secs"] + stats["slow_write_secs"] > 0
    assert stats["write_secs"] <= stats["total_secs"]
    assert stats["write_GB/s"] == pytest.approx(stats["bytes"] / 2**30 / stats["write_secs"])
    assert stats["write"] > 0
    assert (stats["close"], stats["fileno"], stats["flush"]) == (1, 0, 0)


@SAVES
def test_the_arguments_of_fastpersist_are_taken(save: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.pt"
    handle, buffer = get_aio_handle(), get_pinned_buffer(1)
    stats = save(state(), path, handle, buffer, show_stats=True, double_buffer=False, num_parallel_writers=8)
    assert capsys.readouterr().out == f"stats = {stats}\n"
    assert_same_trees(torch.load(path), state())
    save(state(), path, handle, buffer, use_gds=True)  # of the host's memory there is nothing to send directly
    assert_same_trees(torch.load(path), state())
    save(state(), path, pickle_protocol=4)
    assert_same_trees(torch.load(path, weights_only=False), state())


@SAVES
def test_modules_are_saved_whole(save: Any, tmp_path: Path) -> None:
    module = torch.nn.Linear(2, 3)
    save(module, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    assert isinstance(loaded, torch.nn.Linear)
    assert_same_trees(loaded.state_dict(), module.state_dict())


@SAVES
def test_an_error_leaves_the_file(save: Any, tmp_path: Path, no_leaks: None) -> None:
    path = tmp_path / "model.pt"
    save(state(), path)
    with pytest.raises((AttributeError, TypeError)):
        save({"x": torch.ones(3), "f": lambda: 1}, path)
    assert_same_trees(torch.load(path), state())
    with pytest.raises(penstock.NotFoundError, match="nowhere"):
        save(state(), tmp_path / "nowhere" / "model.pt")
    assert os.listdir(tmp_path) == ["model.pt"]


FASTPERSIST_EXAMPLE = """
    import sys
    import torch
    from penstock.fastpersist import (
        fastpersist_save,
        fastpersist_save_legacy,
        get_aio_handle,
        get_pinned_buffer,
    )

    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 64)).sum().backward()
    optimizer.step()
    checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}

    aio_handle = get_aio_handle()
    pinned_buffer = get_pinned_buffer(size_mb=64)
    stats = fastpersist_save(checkpoint, sys.argv[1] + "/zip.pt", aio_handle, pinned_buffer)
    print(stats["save_storage"])
    stats = fastpersist_save_legacy(checkpoint, sys.argv[1] + "/legacy.pt", aio_handle, pinned_buffer)
    print(stats["save_storage"])
    torch.save(checkpoint, sys.argv[1] + "/expected.pt")
"""

SERIALIZATION_EXAMPLE = """
    import sys
    import torch
    from penstock.fastpersist import serialization

    model = torch.nn.Linear(16, 4)
    serialization.save(model.state_dict(), sys.argv[1] + "/zip.pt")
    serialization.save(model.state_dict(), sys.argv[1] + "/legacy.pt", _use_new_zipfile_serialization=False)
    torch.save(model.state_dict(), sys.argv[1] + "/expected.pt")
    model.load_state_dict(serialization.load(sys.argv[1] + "/zip.pt", map_location="cpu", weights_only=True))
    print(len(serialization.load(sys.argv[1] + "/legacy.pt")))
"""


@pytest.mark.parametrize(
    ("example", "printed"), [(FASTPERSIST_EXAMPLE, "16\n16\n"), (SERIALIZATION_EXAMPLE, "2\n")], ids=["save", "drop-in"]
)
def test_the_usage_that_people_know_runs(example: str, printed: str, tmp_path: Path) -> None:
    result = helpers.run_python(example, str(tmp_path))
    assert (result.stdout, result.stderr) == (printed, "")
    for name in ("zip.pt", "legacy.pt"):
        assert_same_trees(torch.load(tmp_path / name), torch.load(tmp_path / "expected.pt"))


def test_the_guides_code_runs(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "fastpersist.md").read_text(encoding="utf-8")
    blocks = re.findall(r"(<!-- not run -->\n)?```python\n(.*?)```", guide, re.DOTALL)
    code = "\n".join(block for not_run, block in blocks if not not_run)
    script = f"import os, sys\nos.chdir(sys.argv[1])\n{code}\nprint(sorted(state['model']), on_meta['0.weight'].device)"
    result = helpers.run_python(script, str(tmp_path))
    assert result.stderr == ""
    assert result.stdout.splitlines()[-1] == "['0.bias', '0.weight', '1.bias', '1.weight'] meta"
    assert sorted(os.listdir(tmp_path)) == ["legacy.pt", "model.pt", "step-100", "step-100.pt"]
