"""Packing what is on another device: the file is the same, and little of it is in the host's memory at a time."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import penstock
import pytest
import torch
from penstock.flashpack import _stream, assign_from_file, pack_to_file
from torch.utils._pytree import tree_map


class Host:
    """The copies that came from the device, as long as they live."""

    def __init__(self) -> None:
        self.live = 0
        self.most = 0
        self.copies = 0

    def add(self, tensor: torch.Tensor) -> None:
        nbytes = tensor.nbytes
        self.live += nbytes
        self.copies += 1
        self.most = max(self.most, self.live)
        weakref.finalize(tensor, self._remove, nbytes)

    def _remove(self, nbytes: int) -> None:
        self.live -= nbytes


HOST = Host()


class Remote(torch.Tensor):
    """A tensor that says that it is on an accelerator. There is none: an ordinary one does its work."""

    @staticmethod
    def __new__(cls, local: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(
            cls, local.shape, strides=local.stride(), dtype=local.dtype, device="xla"
        )

    def __init__(self, local: torch.Tensor) -> None:
        self.local = local

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        keywords = dict(keywords or {})
        target = keywords.get("device")
        comes_home = function is torch.ops.aten._to_copy.default and target == torch.device("cpu")
        if not comes_home:
            keywords.pop("device", None)
        unwrapped, options = tree_map(
            lambda each: each.local if isinstance(each, Remote) else each, (arguments, keywords)
        )
        result = function(*unwrapped, **options)
        if comes_home:
            HOST.add(result)
            return result
        return tree_map(lambda each: Remote(each) if isinstance(each, torch.Tensor) else each, result)


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    HOST.__init__()  # type: ignore[misc]
    monkeypatch.setattr(_stream, "PIECE_BYTES", 2**16)
    return HOST


def make_state() -> dict[str, torch.Tensor]:
    """Several pieces of some, tiny and empty ones, names that JSON escapes, views."""
    torch.manual_seed(3)
    return {
        "large": torch.randn(300, 400),
        'odd\n"é\x01': torch.randn(1001),
        "half": torch.randn(70_001).half(),
        "turned": torch.randn(200, 300).t(),
        "counter": torch.tensor(12345),
        "flags": torch.rand(33) > 0.5,
        "complex": torch.randn(9, dtype=torch.complex64).conj(),
        "empty": torch.empty(0, 4),
        "last": torch.empty(0, dtype=torch.bool),
    }


def remote(state: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {name: Remote(tensor.resolve_conj()) for name, tensor in state.items()}


@pytest.mark.parametrize("align_large", [True, False])
@pytest.mark.parametrize("align_bytes", [0, 1, 96, 128, 4096])
def test_the_file_is_the_one_that_the_engine_writes(tmp_path: Path, align_bytes: int, align_large: bool) -> None:
    state = make_state()
    options: dict[str, Any] = {"align_bytes": align_bytes, "align_large": align_large}
    pack_to_file(state, tmp_path / "local", **options)
    pack_to_file(remote(state), tmp_path / "remote", **options)
    assert HOST.copies > 0
    assert (tmp_path / "remote").read_bytes() == (tmp_path / "local").read_bytes()


@pytest.mark.parametrize("target", [torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.int16])
@pytest.mark.parametrize("name_order", [None, ["half", "counter", "nothing", "large"]])
def test_types_are_converted_as_the_engine_does(
    tmp_path: Path, target: torch.dtype, name_order: list[str] | None
) -> None:
    state = make_state()
    del state["complex"]
    pack_to_file(state, tmp_path / "local", target, name_order)
    pack_to_file(remote(state), tmp_path / "remote", target, name_order)
    assert (tmp_path / "remote").read_bytes() == (tmp_path / "local").read_bytes()


def test_only_a_piece_is_in_the_hosts_memory_at_a_time(tmp_path: Path) -> None:
    state = remote(make_state())
    pack_to_file(state, tmp_path / "remote")
    whole = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    assert HOST.copies > whole // 2**16
    assert 0 < HOST.most <= 2**16
    assert HOST.live == 0


def test_what_is_local_is_not_copied(tmp_path: Path) -> None:
    state = make_state()
    mixed: dict[str, Any] = {**state, "half": Remote(state["half"])}
    pack_to_file(state, tmp_path / "local")
    pack_to_file(mixed, tmp_path / "mixed")
    assert HOST.copies == 3
    assert (tmp_path / "mixed").read_bytes() == (tmp_path / "local").read_bytes()


def test_a_module_comes_back(tmp_path: Path) -> None:
    model, other = torch.nn.Linear(100, 200), torch.nn.Linear(100, 200)
    pack_to_file(remote(model.state_dict()), tmp_path / "remote")
    assign_from_file(other, tmp_path / "remote")
    assert torch.equal(other.weight, model.weight)


def test_an_error_or_a_stop_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "model.flashpack"
    path.write_bytes(b"old")
    with pytest.raises(penstock.CancelledError, match="stopped by its callback"):
        pack_to_file(remote(make_state()), path, progress=lambda done, total: done < total // 2)
    with pytest.raises(penstock.ArgumentError, match="nothing to store"):
        pack_to_file(remote({"empty": torch.empty(0)}), path)
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["model.flashpack"]


def test_what_no_file_holds_is_refused_by_name(tmp_path: Path) -> None:
    state: dict[str, Any] = {**remote(make_state()), "nowhere": torch.empty(3, device="meta")}
    with pytest.raises(penstock.UnsupportedError, match="nowhere: a tensor on the meta device has no data"):
        pack_to_file(state, tmp_path / "model.flashpack")
