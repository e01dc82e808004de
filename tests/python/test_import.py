"""What importing penstock brings in, and how it does without its optional parts."""

from __future__ import annotations

from pathlib import Path

import helpers
import numpy as np
import penstock
import pytest

# Makes the import of a module fail, as if it were not installed.
BLOCK = """
    import importlib.abc, importlib.util, sys

    class Blocked(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path, target=None):
            if name.split(".")[0] in BLOCKED:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    find_spec = importlib.util.find_spec
    importlib.util.find_spec = lambda name, *rest: None if name in BLOCKED else find_spec(name, *rest)
    sys.meta_path.insert(0, Blocked())
"""


def test_importing_penstock_imports_no_framework() -> None:
    script = "import sys, penstock; print([m for m in ('torch', 'numpy', 'rich', 'ml_dtypes') if m in sys.modules])"
    assert helpers.run_python(script).stdout == "[]\n"


def test_everything_works_without_torch(path: Path) -> None:
    penstock.save({"x": np.arange(6, dtype=np.float32).reshape(2, 3)}, path)
    script = (
        """
    BLOCKED = {"torch"}
    """
        + BLOCK
        + """
    import penstock
    path = sys.argv[1]
    tensors = penstock.load(path)
    print(type(tensors["x"]).__module__, tensors["x"].tolist())
    print(penstock.open(path)["x"][1, ::2].tolist())
    print([name for name, _ in penstock.stream(path)])
    tensors["y"] = tensors["x"].astype("int64")
    penstock.save(tensors, path)
    penstock.save_async(tensors, path).wait()
    target = {name: array * 0 for name, array in tensors.items()}
    print(penstock.load_into(target, path, assign=False))
    print(target["y"].tolist())
    print(bool(penstock.verify(path)), "torch" in sys.modules)
    import penstock.safetensors.numpy
    print(sorted(penstock.safetensors.numpy.load_file(path)))
    with penstock.safetensors.safe_open(path, "np") as file:
        print(file.get_slice("x")[0].tolist())
    for use in (
        lambda: penstock.save(tensors, path + ".pt"),
        lambda: penstock.load(path, framework="torch"),
        lambda: penstock.save_parallel(tensors, path),
    ):
        try:
            use()
        except ImportError as error:
            print(str(error).removeprefix(path))
    """
    )
    lines = helpers.run_python(script, str(path)).stdout.splitlines()
    assert lines == [
        "numpy [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]",
        "[3.0, 5.0]",
        "['x']",
        "LoadedInto(missing_keys=[], unexpected_keys=[], meta_keys=[])",
        "[[0, 1, 2], [3, 4, 5]]",
        "True False",
        "['x', 'y']",
        "[0.0, 1.0, 2.0]",
        ".pt: a torch file needs torch, which is not installed: pip install torch",
        "framework='torch' needs torch, which is not installed: pip install torch",
        "save_parallel needs torch, which is not installed: pip install torch",
    ]


def test_numpy_without_ml_dtypes_says_what_to_install(path: Path) -> None:
    helpers.write_raw(path, helpers.one_tensor("BF16", [2], 4), b"\x80\x3f\x00\x40")
    script = (
        """
    BLOCKED = {"ml_dtypes"}
    """
        + BLOCK
        + """
    import penstock
    path = sys.argv[1]
    for use in (
        lambda: penstock.load(path, framework="numpy"),
        lambda: penstock.stream(path, framework="numpy"),
        lambda: penstock.open(path, "numpy")["x"].load(),
    ):
        try:
            use()
        except penstock.UnsupportedError as error:
            print(error)
    print(penstock.load(path, framework="numpy", dtype="float32")["x"].tolist())
    """
    )
    lines = helpers.run_python(script, str(path)).stdout.splitlines()
    message = (
        'x: NumPy has no BF16: install ml_dtypes, load with dtype= a type that NumPy has, or use framework="torch"'
    )
    assert lines == [message, message, message, "[1.0, 2.0]"]


def test_a_progress_bar_needs_no_rich(path: Path) -> None:
    script = (
        """
    BLOCKED = {"rich"}
    """
        + BLOCK
        + """
    import numpy, penstock
    sys.stderr.isatty = lambda: True
    penstock.save({"x": numpy.zeros(2**18, "f4")}, sys.argv[1], progress=True)
    """
    )
    result = helpers.run_python(script, str(path))
    assert result.stderr.startswith("saving model.safetensors: 1.0 of 1.0 MiB, ")


def test_a_progress_bar_is_drawn_on_a_terminal(path: Path) -> None:
    pytest.importorskip("rich")
    script = """
    import sys, numpy, penstock
    sys.stderr.isatty = lambda: True
    penstock.save({"x": numpy.zeros(2**18, "f4")}, sys.argv[1], progress=True)
    """
    result = helpers.run_python(script, str(path), FORCE_COLOR="1", COLUMNS="100")
    assert "saving model.safetensors" in result.stderr
    assert "━" in result.stderr


def test_the_version_is_that_of_the_engine() -> None:
    assert penstock.__version__ == penstock._core.version()


def test_submodules_are_found_when_they_are_asked_for() -> None:
    script = (
        "import penstock; print(penstock.safetensors.safe_open.__name__, penstock.measure.available_backends()[-1])"
    )
    assert helpers.run_python(script).stdout == "safe_open threads\n"
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        penstock.nothing  # noqa: B018
