"""One rank of the tests of shard=: runs scenarios in turn, and writes what came of each as a line."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import penstock
import torch
import torch.distributed as dist
from penstock import Shard
from penstock._torch import scatter, shards
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.distributed.tensor import Shard as Split

TIMEOUT_SECONDS = 8.0
PLAN: dict[str, Any] = {
    "*.rows": 0,
    "*.columns": 1,
    "*.cube": (slice(None), slice(0, 5, 2)),
    "*.odd": -1,
    "*.float8": 0,
    "*.short": 0,
}


def make_tensors(number: int) -> dict[str, torch.Tensor]:
    """What file `number` holds: large and tiny tensors, odd lengths, narrow types, an empty one and a single number."""
    generator = torch.Generator().manual_seed(number)
    made: dict[str, torch.Tensor] = {
        f"{number}.rows": torch.randn(701, 513, generator=generator),
        f"{number}.columns": torch.randn(300, 401, generator=generator).to(torch.bfloat16),
        f"{number}.cube": torch.randn(7, 5, 3, generator=generator),
        f"{number}.odd": torch.randn(5, 3, 7, generator=generator).half(),
        f"{number}.float8": torch.randn(6, 10, generator=generator).to(torch.float8_e4m3fn),
        f"{number}.short": torch.arange(3),
        f"{number}.whole": torch.arange(23),
        f"{number}.flags": torch.arange(13) % 3 == 0,
        f"{number}.single": torch.tensor(number + 0.5),
        f"{number}.empty": torch.empty(0, 4),
    }
    made |= {f"{number}.tiny.{index}": torch.full((3,), float(index)) for index in range(40)}
    return made


FILES = 2


def write_files(directory: Path) -> None:
    (directory / "model").mkdir()
    for number in range(FILES):
        penstock.save(make_tensors(number), directory / "model" / f"{number}.safetensors")


def everything() -> dict[str, torch.Tensor]:
    return {name: tensor for number in range(FILES) for name, tensor in make_tensors(number).items()}


def piece(tensor: torch.Tensor, dim: int, rank: int, world: int) -> torch.Tensor:
    length = -(-tensor.shape[dim] // world)
    begin = min(rank * length, tensor.shape[dim])
    return tensor.narrow(dim, begin, min(length, tensor.shape[dim] - begin))


def expected_parts(rank: int, world: int) -> dict[str, torch.Tensor]:
    """What PLAN gives to a rank, by slicing whole tensors."""
    found = everything()
    for name, tensor in found.items():
        how = PLAN.get(f"*.{name.partition('.')[2]}")
        if isinstance(how, tuple):
            found[name] = tensor[how]
        elif how is not None:
            found[name] = piece(tensor, how % tensor.dim(), rank, world)
    return {name: tensor.contiguous() for name, tensor in found.items()}


def check(found: dict[str, Any], expected: dict[str, torch.Tensor]) -> None:
    assert sorted(found) == sorted(expected)
    for name, tensor in expected.items():
        assert helpers.same(found[name], tensor), name


def _note(done: list[tuple[int, int]], *at: int) -> None:
    done.append((at[0], at[1]))


def every_way(rank: int, world: int, directory: Path) -> None:
    for plan in ("exact", "scatter", "auto"):
        for limit in (4 * 2**20, 100_000):  # of one batch, and of many
            scatter._LEAST_BATCH = scatter._MOST_BATCH = limit
            stats = penstock.Stats()
            done: list[tuple[int, int]] = []
            found = penstock.load(
                directory / "model",
                shard=PLAN,
                plan=plan,
                stats=stats,
                progress=partial(_note, done),
            )
            check(found, expected_parts(rank, world))
            assert list(found) == list(penstock.load(directory / "model", shard=PLAN))
            assert (stats["rank"], stats["world"]) == (rank, world)
            assert done[-1][0] == done[-1][1]
            if plan == "scatter" and world > 1:
                assert stats["plan"] == "scatter: it was asked for"
            if plan == "auto":
                assert stats["plan"].startswith("exact: "), stats["plan"]
                assert ("too few" if world > 1 else "one rank") in stats["plan"]


def every_byte_once(rank: int, world: int, directory: Path) -> None:
    stats = penstock.Stats()
    penstock.load(directory / "model", shard=PLAN, plan="scatter", stats=stats)
    numbers = [torch.zeros(2, dtype=torch.int64) for _ in range(world)]
    counted = [stats["bytes"], stats.get("bytes_sent", 0) - stats.get("bytes_received", 0)]
    dist.all_gather(numbers, torch.tensor(counted))
    wanted = everything() if world > 1 else expected_parts(rank, world)
    total = sum(tensor.nbytes for tensor in wanted.values())
    assert sum(int(each[0]) for each in numbers) == total
    assert sum(int(each[1]) for each in numbers) == 0
    if world > 1:  # evenly
        assert all(abs(int(each[0]) - total / world) < 10_000 for each in numbers), numbers


def conversions(rank: int, world: int, directory: Path) -> None:
    scatter._LEAST_BATCH = scatter._MOST_BATCH = 50_000
    found = penstock.load(
        directory / "model",
        select=["*.rows", "*.odd", "*.short"],
        dtype="bfloat16",
        rename=penstock.add_prefix("m."),
        shard={name: how for name, how in PLAN.items() if name in ("*.rows", "*.odd", "*.short")},
        plan="scatter",
    )
    expected = {
        name: each
        for name, each in expected_parts(rank, world).items()
        if name.split(".")[1] in ("rows", "odd", "short")
    }
    check(
        found, {f"m.{name}": each.bfloat16() if each.is_floating_point() else each for name, each in expected.items()}
    )


def arrays(rank: int, world: int, directory: Path) -> None:
    found = penstock.load(
        directory / "model",
        select=["*.rows", "*.odd"],
        shard={"*.rows": 1, "*.odd": 0},
        plan="scatter",
        framework="numpy",
    )
    for name, dim in [("0.rows", 1), ("1.odd", 0)]:
        assert isinstance(found[name], np.ndarray)
        assert found[name].tobytes() == helpers.bits_of(piece(everything()[name], dim, rank, world)), name


def narrow_types(rank: int, world: int, directory: Path) -> None:
    """Types of less than a byte, whose rows end at whole bytes or don't."""
    path = directory / f"narrow-{rank}.safetensors"
    data = helpers.random_bytes(16 * 8 // 2 + 16 * 6 // 8 * 4 + 8)
    header = {
        "four": {"dtype": "F4", "shape": [16, 8], "data_offsets": [0, 64]},
        "six": {"dtype": "F6_E2M3", "shape": [16, 4], "data_offsets": [64, 112]},
        "uneven": {"dtype": "F4", "shape": [16, 1], "data_offsets": [112, 120]},
    }
    helpers.write_raw(path, header, data)
    plan = {"four": 1, "six": 0, "uneven": 0}
    found, exact = (penstock.load(path, shard=plan, plan=way) for way in ("scatter", "exact"))
    for name in plan:
        pair = [each[name] for each in (found, exact)]
        if isinstance(pair[0], penstock.PackedTensor):
            assert pair[0][:2] == pair[1][:2]
            pair = [each.data for each in pair]
        assert helpers.same(*pair), name


def own_plans(rank: int, world: int, directory: Path) -> None:
    """Ranks want what no one plan says; rows that nobody wants are not read."""
    rows = everything()["0.rows"]
    wanted = slice(100 + rank * 7, 200 + rank * 50, rank + 1)
    stats = penstock.Stats()
    found = penstock.load(
        directory / "model",
        select="0.rows",
        shard={"0.rows": (wanted, slice(rank, None, 2))},
        plan="scatter",
        stats=stats,
    )
    check(found, {"0.rows": rows[wanted, rank::2].contiguous()})
    if world > 1:
        read = torch.tensor(stats["bytes"])
        dist.all_reduce(read)
        assert int(read) <= (150 + 50 * world) * 513 * 4


def meshes(rank: int, world: int, directory: Path) -> None:
    shape = (2, world // 2) if world > 1 else (1, 1)
    mesh = dist.init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
    for placements in ([Split(0), Split(1)], [Replicate(), Split(0)], [Split(0), Split(0)]):
        whole = everything()["0.rows"]
        expected = distribute_tensor(whole, mesh, placements).to_local()
        for plan in ("exact", "scatter"):
            found = penstock.load(
                directory / "model", select="0.rows", shard=Shard({"0.rows": placements}, mesh=mesh), plan=plan
            )
            check(found, {"0.rows": expected.contiguous()})
    part = mesh["tp"]
    found = penstock.load(directory / "model", select="1.rows", shard=Shard({"1.rows": 0}, mesh=part), plan="scatter")
    check(found, {"1.rows": piece(everything()["1.rows"], 0, mesh.get_coordinate()[1], shape[1])})


def chosen_by_measure(rank: int, world: int, directory: Path) -> None:
    """Where all want all, one drive serves all: the numbers of all ranks decide, and all decide the same."""
    shards._LEAST_MEASURED = 0
    for plan in ({"*.rows": 0}, {"*": None}):
        stats = penstock.Stats()
        found = penstock.load(directory / "model", shard=plan, plan="auto", stats=stats)
        if world == 1:
            assert stats["plan"] == "exact: there is one rank"
            continue
        said: list[Any] = [None] * world
        dist.all_gather_object(said, stats["plan"])
        assert said == [said[0]] * world, said
        assert "read once and sent in" in said[0]
        assert "drive" in said[0]
        assert "link" in said[0]
        expected = everything()
        if "*" not in plan:
            expected |= {f"{n}.rows": piece(expected[f"{n}.rows"], 0, rank, world) for n in range(FILES)}
        check(found, expected)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(13, 7)
        self.second = torch.nn.Linear(7, 10)
        self.register_buffer("count", torch.zeros(3))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.second(self.first(value))
        return made


def model_file(directory: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    torch.manual_seed(3)
    state = {name: torch.randn_like(each) for name, each in Model().state_dict().items()}
    path = directory / "module.safetensors"
    if dist.get_rank() == 0:
        penstock.save(state, path)
    dist.barrier()
    return path, state


def full_state(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    state = module.state_dict()
    return {name: each.full_tensor() if isinstance(each, DTensor) else each for name, each in state.items()}


def fully_sharded(rank: int, world: int, directory: Path) -> None:
    path, state = model_file(directory)
    mesh = dist.init_device_mesh("cpu", (world,))
    for on_meta in (False, True):
        with torch.device("meta" if on_meta else "cpu"):
            model = Model()
        fully_shard(model.first, mesh=mesh)
        fully_shard(model, mesh=mesh)
        held = dict(model.named_parameters())
        stats = penstock.Stats()
        left = penstock.load_into(model, path, stats=stats)
        assert left == ([], [])
        assert left.meta_keys == []
        check(full_state(model), state)
        own = sum(each.to_local().nbytes for each in model.parameters()) + state["count"].nbytes
        assert stats["bytes"] == own
        if not on_meta:
            assert all(held[name] is each for name, each in model.named_parameters())
        model(torch.ones(2, 13)).sum().backward()
        assert all(each.grad is not None for each in model.parameters())


def placed(rank: int, world: int, directory: Path) -> None:
    path, state = model_file(directory)
    shape = (2, world // 2) if world > 1 else (1, 1)
    mesh = dist.init_device_mesh("cpu", shape)
    for placements in ([Split(0), Split(1)], [Split(1), Replicate()], [Replicate(), Replicate()], [Split(0), Split(0)]):
        for assign in (None, True):
            target = {
                name: distribute_tensor(torch.zeros_like(each), mesh, placements)
                for name, each in state.items()
                if each.dim() == 2
            }
            addresses = {name: each.to_local().data_ptr() for name, each in target.items()}
            penstock.load_into(target, path, select="*.weight", assign=assign)
            for name, each in target.items():
                assert isinstance(each, DTensor)
                assert tuple(each.placements) == tuple(placements)
                assert helpers.same(each.full_tensor(), state[name]), (name, placements)
                assert assign or each.to_local().data_ptr() == addresses[name]


def converted_into(rank: int, world: int, directory: Path) -> None:
    path, state = model_file(directory)
    mesh = dist.init_device_mesh("cpu", (world,))
    target = {"first.weight": distribute_tensor(torch.zeros(7, 13, dtype=torch.bfloat16), mesh, [Split(1)])}
    penstock.load_into(target, path, strict=False)
    assert helpers.same(target["first.weight"].full_tensor(), state["first.weight"].bfloat16())


def tiny_model(family: str) -> Any:
    """A model of transformers with random weights."""
    import transformers

    sizes = {"vocab_size": 48, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": False}
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2} if family == "Mixtral" else {}
    torch.manual_seed(1)
    config = getattr(transformers, f"{family}Config")(**sizes, **heads, **experts)
    return getattr(transformers, f"{family}ForCausalLM")(config)


def transformers_plan(rank: int, world: int, directory: Path, family: str) -> None:
    """What transformers gives to each rank by its plan, penstock reads by the same plan."""
    import transformers
    from transformers.distributed import DistributedConfig

    folder = directory / family
    plan = transformers.AutoConfig.from_pretrained(folder).base_model_tp_plan
    state = {name: each for file in folder.glob("*.safetensors") for name, each in penstock.load(file).items()}
    found = penstock.load(folder, shard=plan)
    split = [name for name in state if found[name].shape != state[name].shape]
    assert len(split) >= 14, split
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, distributed_config=DistributedConfig(tp_size=world, tp_plan="auto")
    )
    state = {name: each.to_local() if isinstance(each, DTensor) else each for name, each in model.state_dict().items()}
    own = fused_experts({name: found[name] for name in split})
    assert len(own) >= 12, sorted(own)
    for name, tensor in own.items():
        assert helpers.same(state[name], tensor), name


def fused_experts(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Experts that lie one by one in the file, under the names and in the form that transformers has them in."""
    plain = {name: each for name, each in tensors.items() if ".experts." not in name}
    for layer in range(2):
        old, new = f"model.layers.{layer}.block_sparse_moe.experts", f"model.layers.{layer}.mlp.experts"
        if f"{old}.0.w1.weight" not in tensors:
            continue
        gate, up, down = ([tensors[f"{old}.{index}.{w}.weight"] for index in range(4)] for w in ("w1", "w3", "w2"))
        plain[f"{new}.gate_up_proj"] = torch.stack([torch.cat(pair) for pair in zip(gate, up, strict=True)])
        plain[f"{new}.down_proj"] = torch.stack(down)
    return plain


def transformers_llama(rank: int, world: int, directory: Path) -> None:
    transformers_plan(rank, world, directory, "Llama")


def transformers_mixtral(rank: int, world: int, directory: Path) -> None:
    transformers_plan(rank, world, directory, "Mixtral")


def missing_file(rank: int, world: int, directory: Path) -> None:
    path = directory / "model" if rank != world - 1 else directory / "missing.safetensors"
    penstock.load(path, shard=PLAN, plan="scatter")


def other_tensors(rank: int, world: int, directory: Path) -> None:
    penstock.load(directory / "model" / f"{min(rank, 1)}.safetensors", shard={"*.rows": 0}, plan="scatter")


def stopped(rank: int, world: int, directory: Path) -> None:
    penstock.load(
        directory / "model", shard=PLAN, plan="auto" if world == 1 else "scatter", progress=lambda *_: rank != world - 1
    )


def works_again(rank: int, world: int, directory: Path) -> None:
    check(penstock.load(directory / "model", shard=PLAN, plan="scatter"), expected_parts(rank, world))


def dies(rank: int, world: int, directory: Path) -> None:
    """The last rank is killed when half of the batches are exchanged."""
    scatter._LEAST_BATCH = scatter._MOST_BATCH = 100_000

    def progress(done: int, total: int) -> None:
        if rank == world - 1 and done > total // 2:
            os.kill(os.getpid(), signal.SIGKILL)

    penstock.load(directory / "model", shard=PLAN, plan="scatter", progress=progress)


SCENARIOS: dict[str, Callable[[int, int, Path], None]] = {
    scenario.__name__: scenario
    for scenario in (
        every_way,
        every_byte_once,
        conversions,
        arrays,
        narrow_types,
        own_plans,
        meshes,
        chosen_by_measure,
        fully_sharded,
        placed,
        converted_into,
        missing_file,
        other_tensors,
        stopped,
        works_again,
        dies,  # last: nobody can meet again after it
    )
}


# Those that need a library of others.
SCENARIOS |= {scenario.__name__: scenario for scenario in (transformers_llama, transformers_mixtral)}


def main() -> None:
    rank, world, directory = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), Path(sys.argv[1])
    chosen = sys.argv[2:]
    torch.set_num_threads(1)
    os.environ["PENSTOCK_TIMEOUT"] = str(TIMEOUT_SECONDS)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    with (directory / f"outcome-{rank}").open("w", buffering=1) as outcomes:
        for name in chosen:
            begin = time.monotonic()
            try:
                SCENARIOS[name](rank, world, directory)
                said = ""
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
            seconds = time.monotonic() - begin
            print(json.dumps({"scenario": name, "said": said, "seconds": seconds}), file=outcomes)
    os._exit(0)  # a group with a dead member can't be left in order


if __name__ == "__main__":
    main()
