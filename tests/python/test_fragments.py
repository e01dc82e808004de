"""What DeepSpeed's FastPersist leaves in pieces, joined by penstock.convert."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import penstock
import pytest
import torch
from trees import assert_same_trees


def make_tree(seed: int = 0) -> dict[str, Any]:
    torch.manual_seed(seed)
    base = torch.randn(100, 30)
    return {
        "module": {"weight": base, "tied": base, "turned": base.t(), "bias": torch.randn(7).bfloat16()},
        "optimizer": {"state": {0: {"step": 3, "exp_avg": torch.randn(50, 3)}}},
        "empty": torch.empty(0),
        "name": "t\u00e9xt",
    }


def write_fragments(obj: Any, path: Path, count: int) -> list[Path]:
    """As `count` writers do, all of which have the same object: the pickles, and an equal part of what follows."""
    torch.save(obj, path, _use_new_zipfile_serialization=False)
    data = path.read_bytes()
    path.unlink()
    storages = {}
    for tensor in _tensors(obj):
        storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
    head = len(data) - sum(8 + nbytes for nbytes in storages.values())
    length, longer = divmod(len(data) - head, count)
    fragments = []
    for rank in range(count):
        begin = head + rank * length + min(rank, longer)
        fragments.append(path.with_name(f"{path.name}-{rank}.{count}"))
        fragments[-1].write_bytes(data[:head] + data[begin : begin + length + (rank < longer)])
    return fragments


def _tensors(obj: Any) -> list[torch.Tensor]:
    if isinstance(obj, torch.Tensor):
        return [obj]
    return [tensor for value in obj.values() for tensor in _tensors(value)] if isinstance(obj, dict) else []


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_joined_they_are_the_file_of_one_writer(count: int, tmp_path: Path) -> None:
    tree = make_tree()
    torch.save(tree, tmp_path / "whole.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "in").mkdir()
    fragments = write_fragments(tree, tmp_path / "in" / "model.pt", count)
    named: list[Any] = [reversed(fragments), tmp_path / "in", str(tmp_path / "in" / "model.pt")]
    for number, source in enumerate(named):
        target = tmp_path / f"joined{number}.pt"
        penstock.convert(source, target)
        assert target.read_bytes() == (tmp_path / "whole.pt").read_bytes()
        assert_same_trees(torch.load(target), tree)
        assert_same_trees(penstock.load(target), tree)


def test_writers_are_processes_with_keys_of_their_own(tmp_path: Path) -> None:
    value = torch.arange(1000.0)
    fragments = []
    kept = []
    for rank in range(2):
        kept.append(value.clone())
        (tmp_path / str(rank)).mkdir()
        fragments.append(write_fragments({"w": kept[-1], "rank": rank}, tmp_path / str(rank) / "m.pt", 2)[rank])
    assert fragments[0].read_bytes()[:400] != fragments[1].read_bytes()[:400]
    stats = penstock.convert(fragments, tmp_path / "m.pt", metadata={"by": "us"})
    assert stats.notes == ['metadata is left out, because a torch file holds none: "by"']
    assert_same_trees(torch.load(tmp_path / "m.pt"), {"w": value, "rank": 0})


def test_other_formats_get_the_tensors(tmp_path: Path) -> None:
    tree = make_tree()
    fragments = write_fragments(tree, tmp_path / "model.pt", 3)
    notes = penstock.convert(fragments, tmp_path / "m.safetensors", dtype="float64").notes
    assert notes == [
        'values that are no tensors are left out: "optimizer/state/0/step", "name"',
        'tensors that share bytes with others are written in full: "module/turned", "module/weight"',
    ]
    found = penstock.load(tmp_path / "m.safetensors")
    assert torch.equal(found["module/turned"], tree["module"]["turned"].double())
    assert torch.equal(found["optimizer/state/0/exp_avg"], tree["optimizer"]["state"][0]["exp_avg"].double())
    penstock.convert(fragments, tmp_path / "zip.pt", format="torch")
    assert torch.equal(torch.load(tmp_path / "zip.pt")["module/bias"], tree["module"]["bias"])


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    fragments = write_fragments(make_tree(), tmp_path / "model.pt", 3)
    target = tmp_path / "out.pt"

    def refuse(kind: type[penstock.Error], sources: Any, message: str) -> None:
        with pytest.raises(kind) as caught:
            penstock.convert(sources, target)
        assert str(caught.value) == message
        assert not target.exists()

    refuse(
        penstock.NotFoundError,
        [fragments[0], fragments[2]],
        f'{fragments[1]}: missing; "model.pt" was written in 3 fragments, and 2 of them are here',
    )
    refuse(
        penstock.ArgumentError,
        [*fragments, fragments[1]],
        f"{fragments[1]}: fragment 1 of 3, and so is {fragments[1]}",
    )
    old = tmp_path / "model.pt-0.2"
    old.write_bytes(fragments[0].read_bytes())
    refuse(
        penstock.ArgumentError,
        tmp_path,
        f"{fragments[0]}: one of 3 fragments, and {old} is one of 2: they are not of one save",
    )
    old.unlink()
    with fragments[2].open("ab") as file:
        file.write(b"x")
    size = fragments[2].stat().st_size
    refuse(
        penstock.FormatError,
        fragments,
        f"{fragments[2]}: it has {size} bytes, and fragment 2 of 3 of this save has {size - 1}",
    )
    with pytest.raises(penstock.UnsupportedFormatError, match=r"fragment 1 of 3 of \"model.pt\".*convert joins them$"):
        penstock.load(fragments[1])


def test_fragments_of_different_saves_are_refused(tmp_path: Path) -> None:
    first = write_fragments({"a": torch.ones(10)}, tmp_path / "model.pt", 2)
    kept = first[0].read_bytes()
    second = write_fragments({"a": torch.ones(11)}, tmp_path / "model.pt", 2)
    first[0].write_bytes(kept)
    with pytest.raises(penstock.FormatError) as caught:
        penstock.convert(second, tmp_path / "out.pt")
    assert str(caught.value) == (
        f"{second[1]}: its storage 0 has 11 elements of F32, and {first[0]} has 10 of F32: they are not of one save"
    )


DEEPSPEED = """
import sys, torch
sys.path.insert(0, sys.argv[1])
import fastpersist_peer as peer
peer.load_operators()
from deepspeed.io import FastFileWriter, FastFileWriterConfig
from deepspeed.ops.op_builder import AsyncIOBuilder
handle = AsyncIOBuilder().load(verbose=False).aio_handle(1 << 20, 8, False, False, 1)
torch.manual_seed(0)
tree = {f"t{i}": torch.randn(300 + i, 40) for i in range(7)}
for rank in range(3):
    buffer = handle.new_cpu_locked_tensor(4 << 20, torch.empty(0, dtype=torch.uint8))
    config = FastFileWriterConfig(handle, buffer, True, num_parallel_writers=3, writer_rank=rank, global_rank=rank)
    writer = FastFileWriter(f"{sys.argv[2]}-{rank}.3", config)
    storages = peer.write_legacy_head(tree, writer)
    writer.save_torch_storage_object_list(storages, save_size=True)
    writer.close()
"""


def test_deepspeeds_own_fragments_are_joined(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed", reason="deepspeed is not installed")
    bench = Path(__file__).parents[2] / "bench"
    can_run = "import fastpersist_peer; fastpersist_peer.load_operators()"
    if subprocess.run([sys.executable, "-c", can_run], cwd=bench, capture_output=True).returncode != 0:
        pytest.skip("DeepSpeed's operators can't be built here")
    subprocess.run([sys.executable, "-c", DEEPSPEED, str(bench), str(tmp_path / "m.pt")], check=True)
    penstock.convert(tmp_path / "m.pt", tmp_path / "out.pt")
    torch.manual_seed(0)
    assert_same_trees(torch.load(tmp_path / "out.pt"), {f"t{i}": torch.randn(300 + i, 40) for i in range(7)})
