"""framework="jax": arrays over the memory that was loaded, on devices and in shardings, and saves of arrays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import penstock
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")

ARRAYS: dict[str, Any] = {
    "a": np.arange(64, dtype=np.float32).reshape(4, 16),
    "b": np.arange(32, dtype=ml_dtypes.bfloat16),
    "c": np.arange(64, dtype=np.int8).astype(ml_dtypes.float8_e4m3fn),
    "d": np.array([True, False, True]),
    "empty": np.empty((0, 3), np.float16),
    "scalar": np.float32(2.5),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    penstock.save(ARRAYS, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def check(loaded: dict[str, Any], expected: dict[str, Any] = ARRAYS) -> None:
    assert set(loaded) == set(expected)
    for name, array in expected.items():
        assert isinstance(loaded[name], jax.Array)
        assert loaded[name].dtype == array.dtype
        assert loaded[name].shape == np.shape(array)
        assert np.asarray(loaded[name]).tobytes() == array.tobytes(), name


@pytest.mark.parametrize("cache", ["auto", "copy", "direct"])
def test_arrays_are_those_of_the_file(path: Path, cache: str) -> None:
    check(penstock.load(path, framework="jax", cache=cache))
    check(dict(penstock.stream(path, framework="jax", cache=cache)))


def test_an_array_at_a_multiple_of_64_bytes_is_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "model.flashpack"  # which aligns to 128
    penstock.save({"x": ARRAYS["a"], "y": ARRAYS["a"] + 1}, path)
    loaded = penstock.load(path, framework="jax", cache="copy")
    addresses = sorted(array.unsafe_buffer_pointer() for array in loaded.values())
    assert addresses[1] - addresses[0] == 256  # side by side, as in the file


def test_slices_are_arrays(path: Path) -> None:
    with penstock.open(path, framework="jax") as model:
        rows = model["a"][1:3, ::2]
        assert isinstance(rows, jax.Array)
        assert rows.tolist() == ARRAYS["a"][1:3, ::2].tolist()


def test_filtered_renamed_and_converted(path: Path) -> None:
    loaded = penstock.load(path, framework="jax", select="a", dtype="bf16", rename={"a": "z"})
    assert loaded["z"].dtype == ml_dtypes.bfloat16
    assert loaded["z"].tolist() == ARRAYS["a"].tolist()


def test_what_jax_would_narrow_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    path = tmp_path / "wide.safetensors"
    penstock.save({"fine": ARRAYS["a"], "steps": np.arange(3)}, path)
    with pytest.raises(penstock.UnsupportedError, match="^steps: JAX would narrow I64: call jax.config.update"):
        penstock.load(path, framework="jax")
    assert list(penstock.load(path, framework="jax", select="fine")) == ["fine"]
    with jax.enable_x64(True):
        assert penstock.load(path, framework="jax")["steps"].dtype == np.int64


def test_a_torch_file_gives_arrays_by_path(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"model": {"w": torch.ones(3)}, "step": 1}, tmp_path / "m.pt")
    loaded = penstock.load(tmp_path / "m.pt", framework="jax")
    assert isinstance(loaded["model/w"], jax.Array)


def test_devices_by_name_and_themselves(path: Path) -> None:
    for device in ("cpu:0", 0, jax.devices("cpu")[0]):
        check(penstock.load(path, device, framework="jax"))


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("tpu", "device 'tpu': JAX has none of its kind: .*"),
        ("cpu:7", "device 'cpu:7': JAX has 1 of its kind"),
        (-1, "device '-1': JAX has 1 of its kind"),
        (1.5, "device must be a device or a sharding of JAX, a name such as 'gpu:0', or a dict of these, not 1.5"),
        ("cpu:x", "device must be a device or a sharding .* not 'cpu:x'"),
    ],
)
def test_a_device_that_is_not_there_is_refused(path: Path, device: Any, message: str) -> None:
    with pytest.raises(penstock.Error, match=f"^{message}$"):
        penstock.load(path, device, framework="jax")


def test_arrays_are_saved_in_every_format_as_numpys_are(path: Path, tmp_path: Path) -> None:
    arrays = penstock.load(path, framework="jax")
    penstock.save(arrays, tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()
    penstock.save({"a": arrays["a"]}, tmp_path / "a.flashpack")
    check(penstock.load(tmp_path / "a.flashpack", framework="jax"), {"a": ARRAYS["a"]})


def test_keys_of_random_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(penstock.Error, match="^key: expected a tensor, not PRNGKeyArray"):
        penstock.save({"key": jax.random.key(0)}, tmp_path / "x.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_an_array_can_not_be_loaded_into(path: Path) -> None:
    with pytest.raises(penstock.UnsupportedError, match="^a: an array of JAX can't be loaded into"):
        penstock.load_into({"a": jax.numpy.zeros((4, 16))}, path, strict=False)


SHARDED = """
import json, sys
import jax, numpy as np, penstock
from jax.sharding import NamedSharding, PartitionSpec as P

path = sys.argv[1]
mesh = jax.make_mesh((4,), ("x",))
rows = NamedSharding(mesh, P("x"))
loaded = penstock.load(path, {"a": rows, "b": jax.devices()[2]}, framework="jax", select=["a", "b", "d"])
said = {
    "shards": [shard.data.shape for shard in loaded["a"].addressable_shards],
    "equal": bool((np.asarray(loaded["a"]) == np.arange(64, dtype=np.float32).reshape(4, 16)).all()),
    "b": [str(each) for each in loaded["b"].devices()] == [str(jax.devices()[2])],
    "d": str(list(loaded["d"].devices())[0]) == str(jax.devices()[0]),
}
penstock.save(loaded, path + ".again.safetensors")
said["saved"] = penstock.load(path + ".again.safetensors", framework="numpy")["a"].tolist() == loaded["a"].tolist()
try:
    penstock.load(path, rows, framework="jax", select="d")
except penstock.Error as error:
    said["error"] = str(error)
print(json.dumps(said))
"""


def test_shardings_of_several_devices(path: Path) -> None:
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    output = subprocess.run(
        [sys.executable, "-c", SHARDED, str(path)], env=environment, check=True, capture_output=True, text=True
    ).stdout
    said = json.loads(output)
    assert said["error"].startswith("d: JAX can't place bool[3]: ")
    del said["error"]
    assert said == {"shards": [[1, 16]] * 4, "equal": True, "b": True, "d": True, "saved": True}
