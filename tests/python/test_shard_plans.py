"""shard= in one process: every form of a plan gives what slicing a whole load gives, and reads little else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helpers
import penstock
import pytest
import torch
import torch.distributed as dist
from penstock import Shard
from torch.distributed.tensor import Partial, Replicate
from torch.distributed.tensor import Shard as Split

ROW = 4096  # bytes of a row of "rows"


def make_tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(20)
    return {
        "rows.weight": torch.randn(37, ROW // 4, generator=generator),
        "columns.weight": torch.randn(64, 130, generator=generator).bfloat16(),
        "cube": torch.randn(6, 5, 7, generator=generator).half(),
        "float8": torch.randn(12, 10, generator=generator).to(torch.float8_e4m3fn),
        "short": torch.arange(3),
        "single": torch.tensor(4.5),
        "empty": torch.empty(0, 4),
        "flags": torch.arange(29) % 3 == 0,
    }


TENSORS = make_tensors()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    penstock.save(TENSORS, path)
    return path


def piece(tensor: torch.Tensor, dim: int, rank: int, world: int) -> torch.Tensor:
    """The rule: lengths as torch.chunk has them; ranks past its last chunk have nothing."""
    length = -(-tensor.shape[dim] // world)
    begin = min(rank * length, tensor.shape[dim])
    return tensor.narrow(dim, begin, min(length, tensor.shape[dim] - begin)).contiguous()


def check(found: dict[str, Any], expected: dict[str, torch.Tensor]) -> None:
    assert sorted(found) == sorted(expected)
    for name, tensor in expected.items():
        assert helpers.same(found[name], tensor.contiguous()), name


def with_parts(**parts: torch.Tensor) -> dict[str, torch.Tensor]:
    """All tensors, some of them only in part; "__" stands for a point."""
    return {**TENSORS, **{name.replace("__", "."): tensor for name, tensor in parts.items()}}


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5, 64])
def test_each_rank_gets_the_chunk_that_torch_would_cut(file: Path, world: int) -> None:
    plan = {"*.weight": 0, "cube": 2, "float8": 1, "flags": 0, "short": 0, "empty": 1}
    for rank in range(world):
        parts = {name: piece(TENSORS[name], dim, rank, world) for name, dim in plan.items() if name in TENSORS}
        parts |= {name: piece(TENSORS[name], 0, rank, world) for name in ("rows.weight", "columns.weight")}
        check(penstock.load(file, shard=Shard(plan, rank=rank, world=world)), {**TENSORS, **parts})


@pytest.mark.parametrize("world", [2, 3, 7])
def test_the_parts_of_all_ranks_make_the_whole_in_every_dimension(file: Path, world: int) -> None:
    for name, dim in [("rows.weight", 1), ("columns.weight", -1), ("cube", 0), ("cube", 1), ("cube", -1)]:
        parts = [
            penstock.load(file, select=name, shard=Shard({name: dim}, rank=rank, world=world))[name]
            for rank in range(world)
        ]
        assert helpers.same(torch.cat(parts, dim), TENSORS[name]), (name, dim)


@pytest.mark.parametrize("cache", ["auto", "direct", "buffered", "copy"])
def test_every_way_of_reading_gives_the_same_parts(file: Path, cache: str) -> None:
    plan = {"rows.weight": 0, "columns.weight": 1, "cube": (slice(1, None, 2), slice(None), slice(0, 7, 3))}
    expected = with_parts(
        rows__weight=piece(TENSORS["rows.weight"], 0, 1, 3),
        columns__weight=piece(TENSORS["columns.weight"], 1, 1, 3),
        cube=TENSORS["cube"][1::2, :, 0:7:3],
    )
    check(penstock.load(file, shard=Shard(plan, rank=1, world=3), cache=cache), expected)


def test_a_mapped_file_gives_rows_as_they_lie_and_refuses_columns(file: Path) -> None:
    stats = penstock.Stats()
    found = penstock.load(file, shard=Shard({"rows.weight": 0}, rank=1, world=3), cache="mmap", stats=stats)
    check(found, with_parts(rows__weight=piece(TENSORS["rows.weight"], 0, 1, 3)))
    assert stats["bytes_mapped"] == stats["bytes"] == sum(tensor.nbytes for tensor in found.values())
    with pytest.raises(
        penstock.ArgumentError, match='"cube": a part whose elements are apart in the file can\'t be mapped'
    ):
        penstock.load(file, shard=Shard({"cube": 2}, rank=1, world=3), cache="mmap")


@pytest.mark.parametrize(
    "slices",
    [
        (slice(2, 30),),
        (slice(None, None, 5),),
        (slice(-7, None, 2), slice(3, -3, 4)),
        (..., slice(1, 1000, 7)),
        (slice(5, 5),),
        [slice(1, 9), slice(None)],
        (None, slice(0, 1)),
        slice(4, 8),
        ...,
    ],
    ids=str,
)
def test_slices_pick_what_torch_picks(file: Path, slices: Any) -> None:
    picked = slices if isinstance(slices, (tuple, list)) else (slices,)
    index = tuple(slice(None) if each is None else each for each in picked)
    found = penstock.load(file, select="rows.weight", shard={"rows.weight": slices})
    check(found, {"rows.weight": TENSORS["rows.weight"][index]})


def test_several_ranges_of_a_dimension_lie_side_by_side(file: Path) -> None:
    plan = {"rows.weight": (((0, 3, 1), (10, 20, 4), (36, 37, 1)),)}
    rows = TENSORS["rows.weight"][[0, 1, 2, 10, 14, 18, 36]]
    check(penstock.load(file, shard=plan), with_parts(rows__weight=rows))


def test_slices_of_a_plan_need_no_rank(file: Path) -> None:
    stats = penstock.Stats()
    penstock.load(file, shard={"rows.weight": slice(0, 2), "cube": None}, stats=stats)
    assert (stats["rank"], stats["world"], stats["plan"]) == (0, 1, "exact: it was asked for")


@pytest.mark.parametrize("world", [1, 2, 4, 5])
def test_of_row_slices_exactly_their_bytes_are_read(file: Path, world: int) -> None:
    total = 0
    for rank in range(world):
        stats = penstock.Stats()
        found = penstock.load(
            file, select="rows.weight", shard=Shard({"rows.*": 0}, rank=rank, world=world), stats=stats
        )
        assert stats["bytes"] == found["rows.weight"].nbytes
        assert (stats["rank"], stats["world"]) == (rank, world)
        total += stats["bytes"]
    assert total == TENSORS["rows.weight"].nbytes


def test_direct_reads_of_row_slices_take_little_more_than_the_ends_of_blocks(tmp_path: Path) -> None:
    rows = torch.randn(1024, 2048)
    penstock.save({"rows": rows}, tmp_path / "rows.safetensors")
    world, on_drive = 4, 0
    for rank in range(world):
        stats = penstock.Stats()
        shard = Shard({"rows": 0}, rank=rank, world=world)
        penstock.load(tmp_path / "rows.safetensors", shard=shard, cache="direct", stats=stats)
        on_drive += stats["bytes_on_drive"]
    assert rows.nbytes <= on_drive <= 1.02 * rows.nbytes


def test_columns_are_read_in_large_requests(tmp_path: Path) -> None:
    """Rows of 4 KiB of which each rank wants a quarter: few requests, and little is read that is not wanted."""
    columns = torch.randn(512, 4096)
    penstock.save({"columns": columns}, tmp_path / "columns.safetensors")
    world, on_drive = 4, 0
    for rank in range(world):
        stats = penstock.Stats()
        shard = Shard({"columns": 1}, rank=rank, world=world)
        found = penstock.load(tmp_path / "columns.safetensors", shard=shard, cache="direct", stats=stats)
        assert helpers.same(found["columns"], piece(columns, 1, rank, world))
        on_drive += stats["bytes_on_drive"]
    assert on_drive <= 1.2 * columns.nbytes


def test_a_plan_may_be_a_callable_that_is_given_each_tensor(file: Path) -> None:
    def by_size(info: penstock.TensorInfo) -> int | None:
        return 0 if info.nbytes > 10_000 else None

    found = penstock.load(file, shard=Shard(by_size, rank=1, world=2))
    expected = with_parts(
        rows__weight=piece(TENSORS["rows.weight"], 0, 1, 2), columns__weight=piece(TENSORS["columns.weight"], 0, 1, 2)
    )
    check(found, expected)


def test_a_name_goes_before_globs_and_an_earlier_glob_before_a_later_one(file: Path) -> None:
    plan = {"*": None, "columns.*": 0, "rows.weight": 1}
    found = penstock.load(file, shard=Shard(plan, rank=0, world=2))
    check(found, with_parts(rows__weight=piece(TENSORS["rows.weight"], 1, 0, 2)))


def test_names_other_types_and_devices_go_together(file: Path) -> None:
    found = penstock.load(
        file,
        "cpu",
        select=["rows.*", "cube", "short"],
        shard=Shard({"*.weight": 1, "cube": -1}, rank=2, world=3),
        dtype=torch.bfloat16,
        rename=penstock.add_prefix("model."),
    )
    expected = {
        "model.rows.weight": piece(TENSORS["rows.weight"], 1, 2, 3).bfloat16(),
        "model.cube": piece(TENSORS["cube"], 2, 2, 3).bfloat16(),
        "model.short": TENSORS["short"],
    }
    check(found, expected)


def test_arrays_of_numpy_are_cut_the_same_way(file: Path) -> None:
    found = penstock.load(file, select="rows.weight", framework="numpy", shard=Shard({"rows.*": 1}, rank=3, world=4))
    assert found["rows.weight"].shape == (37, ROW // 16)
    assert helpers.bits_of(found["rows.weight"]) == helpers.bits_of(piece(TENSORS["rows.weight"], 1, 3, 4))


@pytest.mark.parametrize("max_buffer", ["4KiB", "256MiB"])
def test_streams_give_the_same_parts_in_the_order_of_the_files(file: Path, max_buffer: str) -> None:
    plan = {"*.weight": 1, "cube": (slice(None), slice(0, 5, 2))}
    shard = Shard(plan, rank=1, world=4)
    done: list[tuple[int, int]] = []
    stats = penstock.Stats()
    found = dict(
        penstock.stream(
            file,
            shard=shard,
            max_buffer=max_buffer,
            progress=lambda *at: done.append(at),
            stats=stats,  # type: ignore[misc]
        )
    )
    loaded = penstock.load(file, shard=shard)
    check(found, loaded)
    assert list(found) == list(loaded) == list(penstock.load(file))
    nbytes = sum(tensor.nbytes for tensor in found.values())
    assert stats["bytes"] == nbytes
    assert done[-1] == (nbytes, nbytes)
    assert (stats["rank"], stats["world"], stats["plan"]) == (1, 4, "exact: it was asked for")


def test_several_files_are_one_checkpoint(tmp_path: Path) -> None:
    names = list(TENSORS)
    for number in range(2):
        penstock.save({name: TENSORS[name] for name in names[number::2]}, tmp_path / f"{number}.safetensors")
    found = penstock.load(tmp_path, shard=Shard({"*.weight": 0}, rank=1, world=2))
    parts = {name: piece(TENSORS[name], 0, 1, 2) for name in ("rows.weight", "columns.weight")}
    assert sorted(found) == sorted(TENSORS)
    helpers.assert_same_tensors(found, {**TENSORS, **parts})


@pytest.mark.parametrize("suffix", ["flashpack", "pt"])
def test_other_formats_are_cut_too(tmp_path: Path, suffix: str) -> None:
    same_type = {"a": torch.randn(10, 6), "b": torch.randn(9)}
    path = tmp_path / f"model.{suffix}"
    if suffix == "pt":
        torch.save(same_type, path)
    else:
        penstock.save(same_type, path)
    found = penstock.load(path, shard=Shard({"a": 1, "b": 0}, rank=1, world=4))
    helpers.assert_same_tensors(found, {name: piece(same_type[name], dim, 1, 4) for name, dim in (("a", 1), ("b", 0))})


def test_parts_of_sub_byte_types_end_at_whole_bytes(tmp_path: Path) -> None:
    data = helpers.random_bytes(24)
    path = helpers.write_raw(tmp_path / "narrow.safetensors", helpers.one_tensor("F4", [6, 8], 24), data)
    whole = torch.frombuffer(bytearray(data), dtype=torch.uint8).reshape(6, 4)
    for rank in range(2):
        by_rows = penstock.load(path, shard=Shard({"x": 0}, rank=rank, world=2))["x"]
        assert helpers.bits_of(by_rows) == helpers.bits_of(piece(whole, 0, rank, 2))
        by_columns = penstock.load(path, shard=Shard({"x": 1}, rank=rank, world=2))["x"]
        assert helpers.bits_of(by_columns) == helpers.bits_of(piece(whole, 1, rank, 2))
    with pytest.raises(penstock.ArgumentError, match=r"^x: dimension 1 .*of 4-bit F4, can't be cut there"):
        penstock.load(path, shard=Shard({"x": 1}, rank=0, world=3))


@pytest.mark.parametrize("dtype", ["F6_E2M3", "F6_E3M2"])
def test_rows_of_six_bit_types_are_cut_where_bytes_end(tmp_path: Path, dtype: str) -> None:
    data = helpers.random_bytes(24)
    path = helpers.write_raw(tmp_path / "narrow.safetensors", helpers.one_tensor(dtype, [4, 8], 24), data)
    found = penstock.load(path, shard=Shard({"x": 0}, rank=1, world=2))["x"]
    assert (found.dtype, found.shape) == (dtype, (2, 8))
    assert helpers.bits_of(found.data) == data[12:]


@pytest.mark.parametrize("dtype", [name for name, bits in helpers.BITS.items() if bits >= 8])
def test_every_type_of_whole_bytes_is_cut_in_columns(tmp_path: Path, dtype: str) -> None:
    width = helpers.BITS[dtype] // 8
    count = 6 * 5 * width
    data = bytes(count) if dtype == "BOOL" else helpers.random_bytes(count)
    path = helpers.write_raw(tmp_path / "any.safetensors", helpers.one_tensor(dtype, [6, 5], count), data)
    found = penstock.load(path, shard={"x": (slice(1, 6, 2), slice(1, 4))})["x"]
    rows = torch.frombuffer(bytearray(data), dtype=torch.uint8).reshape(6, 5, width)
    assert helpers.bits_of(found) == helpers.bits_of(rows[1:6:2, 1:4])


@pytest.fixture(params=range(4), ids=lambda rank: f"rank {rank}")
def mesh(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A mesh of 2 x 2 as one of its ranks sees it; nobody is there to talk to, and nobody needs to be."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=request.param, world_size=4)
    yield dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dist.destroy_process_group()


PLACEMENTS: list[list[Any]] = [
    [Split(0), Replicate()],
    [Replicate(), Split(1)],
    [Split(0), Split(1)],
    [Split(1), Split(0)],
    [Split(0), Split(0)],
    [Split(-1), Split(-1)],
    [Replicate(), Replicate()],
]


@pytest.mark.parametrize("placements", PLACEMENTS, ids=str)
def test_placements_give_what_dtensor_has_on_each_rank(file: Path, mesh: Any, placements: list[Any]) -> None:
    names = ["rows.weight", "columns.weight", "cube", "float8"]
    found = penstock.load(file, select=names, shard=Shard(dict.fromkeys(names, placements), mesh=mesh))
    for name in names:
        expected = TENSORS[name]
        for placement, index in zip(placements, mesh.get_coordinate(), strict=True):
            if not placement.is_replicate():
                expected = piece(expected, placement.dim % expected.dim(), index, 2)
        assert helpers.same(found[name], expected), name


def test_one_dimension_of_a_mesh_is_enough_for_other_plans(file: Path, mesh: Any) -> None:
    stats = penstock.Stats()
    found = penstock.load(file, shard=Shard({"rows.*": 0}, mesh=mesh["tp"]), stats=stats)
    own = mesh.get_coordinate()[1]
    assert helpers.same(found["rows.weight"], piece(TENSORS["rows.weight"], 0, own, 2))
    assert (stats["rank"], stats["world"]) == (own, 2)
    placed = penstock.load(file, shard=Shard({"rows.*": Split(0)}, mesh=mesh["tp"]))
    helpers.assert_same_tensors(placed, found)


def test_a_plan_alone_means_the_default_group(file: Path, mesh: Any) -> None:
    found = penstock.load(file, shard={"rows.*": 0})
    assert helpers.same(found["rows.weight"], piece(TENSORS["rows.weight"], 0, dist.get_rank(), 4))


def test_plans_that_a_mesh_cannot_follow_are_refused(file: Path, mesh: Any) -> None:
    refused: list[tuple[Any, str]] = [
        (0, r"a mesh of shape \(2, 2\) needs placements in the plan"),
        ([Split(0)], r"rows\.weight: 1 placement for a mesh of 2 dimensions"),
        ([Split(0), Partial()], r"rows\.weight: Partial.* says nothing about which part"),
        ([Split(2), Replicate()], r"rows\.weight: its shape \(37, 1024\) has no dimension 2"),
        ([Split(0), 1], r"rows\.weight: 1 is not a placement"),
    ]
    for how, message in refused:
        with pytest.raises(penstock.ArgumentError, match=message):
            penstock.load(file, shard=Shard({"rows.weight": how}, mesh=mesh))


@pytest.mark.parametrize(
    ("shard", "error", "message"),
    [
        ({"rows.wieght": None}, penstock.UnknownTensorError, r"is called 'rows\.wieght'.*rows\.weight"),
        ({"row.*": None}, penstock.UnknownTensorError, r"no tensor matches 'row\.\*'.*rows\.weight"),
        ({"rows.weight": 0}, penstock.DistributedError, r"torch\.distributed is not initialised.*Shard\(plan, rank="),
        ({"rows.weight": Split(0)}, penstock.ArgumentError, r"rows\.weight: placements need a mesh"),
        ({"rows.weight": True}, penstock.ArgumentError, r"expected a dimension, None, slices or placements, not bool"),
        ({"rows.weight": (0, 3)}, penstock.ArgumentError, r"expected a slice for each dimension, not int"),
        ({"rows.weight": slice(None, None, -1)}, penstock.ArgumentError, r"has a negative step"),
        ({"rows.weight": [slice(None)] * 3}, penstock.ArgumentError, r"3 slices for a tensor of shape \(37, 1024\)"),
        ({"rows.weight": (((3, 5, 1), (4, 6, 1)),)}, penstock.ArgumentError, r"ranges must ascend, not overlap"),
        ({"rows.weight": (((30, 38, 1),),)}, penstock.ArgumentError, r"end within 37"),
        ({"rows.weight": "colwise", "cube": 0}, penstock.ArgumentError, r"keep to one kind"),
        ({"rows": "diagonal"}, penstock.ArgumentError, r"unknown style 'diagonal'; the known ones are all_reduce"),
        ({3: 0}, penstock.ArgumentError, r"patterns are strings, not int"),
        ("rows.weight", penstock.ArgumentError, r"expected a dict, a callable or penstock\.Shard, not str"),
        (Shard({"single": 0}, rank=0, world=2), penstock.ArgumentError, r"single: its shape \(\) has no dimension 0"),
        (Shard({"rows.*": -3}, rank=0, world=2), penstock.ArgumentError, r"has no dimension -3"),
    ],
    ids=str,
)
def test_a_plan_that_makes_no_sense_is_refused_in_a_line(
    file: Path, shard: Any, error: type[penstock.Error], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        penstock.load(file, shard=shard)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 1}, "rank and world are given together"),
        ({"rank": 2, "world": 2}, "rank 2 is not one of 2"),
        ({"rank": -1, "world": 2}, "rank -1 is not one of 2"),
        ({"rank": 0, "world": 2, "group": object()}, "give one of rank and world, group, or mesh"),
    ],
)
def test_a_place_that_is_none_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(penstock.ArgumentError, match=message):
        Shard({}, **arguments)


@pytest.mark.parametrize("plan", ["scatter", "auto"])
def test_ways_of_several_ranks_need_a_shard(file: Path, plan: str) -> None:
    with pytest.raises(penstock.ArgumentError, match=f"plan='{plan}' needs shard="):
        penstock.load(file, plan=plan)


def test_an_unknown_way_is_refused_with_those_there_are(file: Path) -> None:
    with pytest.raises(penstock.ArgumentError, match="plan must be one of exact, scatter, auto, not 'fast'"):
        penstock.load(file, shard={"cube": None}, plan="fast")
