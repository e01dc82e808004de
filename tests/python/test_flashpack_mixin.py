"""FlashPackMixin: modules that save and load themselves."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, ClassVar

import helpers
import penstock
import pytest
import torch
from penstock.flashpack import FlashPackMixin
from penstock.flashpack._empty import empty_parameters
from torch import nn


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.flashpack"


# A script as a user writes it: a module with one parameter, trained, saved, loaded by its instance.
MISSION = """
    import torch
    import torch.nn as nn
    from penstock.flashpack import FlashPackMixin

    class model(nn.Module, FlashPackMixin):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([1.0, 2.0]))

        def forward(self, x):
            return (self.weight * x).sum()

    I = model()
    optimizer = torch.optim.SGD(I.parameters(), lr=0.05)
    loss = torch.tensor(1.0)
    while loss >= 1e-6:
        loss = (I(torch.tensor([1.0, 2.0])) - 3.0) ** 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    I.save_flashpack("model.flashpack", target_dtype=torch.float32)
    loaded_module = I.from_flashpack("model.flashpack")

    assert type(loaded_module) is model and loaded_module is not I
    assert torch.equal(loaded_module.weight, I.weight)
    assert loaded_module.weight.requires_grad
    assert loss < 1e-6
    assert abs(loaded_module(torch.tensor([1.0, 2.0])).item() - 3.0) < 2e-3
    print("identical")
"""
PHASES = ["build_index", "reserve", "write", "sync", "rename"]
LOADING = ["read_metadata", "build_lookups", "read_payload", "assign"]


def test_the_example_runs_as_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = helpers.run_python(MISSION).stdout.splitlines()
    assert [line.split(":")[0] for line in lines if ": " in line] == PHASES + LOADING
    assert lines[-2:] == ["Assigned 2 elements to 1 parameters and 0 buffers", "identical"]
    assert all(line.endswith("s") for line in lines[:-2])
    assert os.listdir(tmp_path) == ["model.flashpack"]
    (weight,) = penstock.load(tmp_path / "model.flashpack").values()
    assert (weight.dtype, weight.shape) == (torch.float32, (2,))


def test_the_example_runs_in_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import textwrap

    monkeypatch.chdir(tmp_path)
    exec(compile(textwrap.dedent(MISSION), "mission", "exec"), {})


class Net(nn.Module, FlashPackMixin):
    def __init__(self, width: int = 4, *, bias: bool = True) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width, bias=bias), nn.Dropout(0.5), nn.BatchNorm1d(width))
        self.gain = nn.Parameter(torch.rand(()), requires_grad=False)
        self.register_buffer("table", torch.arange(width), persistent=False)


def test_a_new_instance_is_made_on_the_class_or_an_instance(path: Path) -> None:
    source = Net(6, bias=False)
    source.save_flashpack(path, silent=True)
    for made in (Net.from_flashpack(path, 6, bias=False, silent=True), source.from_flashpack(path, 6, bias=False)):
        assert type(made) is Net
        assert made is not source
        helpers.assert_same_tensors(dict(made.state_dict()), dict(source.state_dict()))
        assert not made.training
        assert not any(module.training for module in made.modules())
        assert made.table.tolist() == list(range(6))
        assert (made.gain.shape, made.gain.requires_grad) == ((), False)
    assert source.training


def test_a_loaded_module_can_be_trained(path: Path) -> None:
    source = Net()
    source.save_flashpack(path, silent=True)
    made = Net.from_flashpack(path, silent=True).train()
    before = made.layers[0].weight.clone()
    optimiser = torch.optim.AdamW(made.parameters(), lr=0.1)
    made.layers(torch.randn(8, 4)).square().mean().backward()
    optimiser.step()
    assert not torch.equal(made.layers[0].weight, before)
    assert torch.equal(source.layers[0].weight, before)


def test_lines_are_printed_unless_silent(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Net().save_flashpack(path)
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == PHASES
    Net.from_flashpack(path)
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()[:-1]] == LOADING
    Net().save_flashpack(path, silent=True)
    Net.from_flashpack(path, silent=True)
    assert capsys.readouterr().out == ""


def test_a_save_takes_the_arguments_of_pack_to_file(path: Path, tmp_path: Path) -> None:
    net = Net()
    order = ["gain", "layers.0.weight", "layers.0.bias"]
    net.save_flashpack(path, torch.float16, order, 64, silent=True)
    metadata = penstock.flashpack.get_flashpack_file_metadata(path)
    assert [record["name"] for record in metadata["index"]] == order
    assert (metadata["target_dtype"], metadata["align_bytes"]) == ("float16", 64)


def test_keywords_that_the_constructor_lacks_are_passed_over(path: Path) -> None:
    class Greedy(Net):
        def __init__(self, **everything: Any) -> None:
            super().__init__()
            self.everything = everything

    Net().save_flashpack(path, silent=True)
    assert isinstance(Net.from_flashpack(path, silent=True, colour="red"), Net)
    assert Greedy.from_flashpack(path, silent=True, colour="red").everything == {"colour": "red"}


def test_a_constructor_that_asks_for_the_rank_gets_it(path: Path) -> None:
    class Ranked(Net):
        def __init__(self, rank: int | None, world_size: int | None) -> None:
            super().__init__()
            self.ranks = (rank, world_size)

    Net().save_flashpack(path, silent=True)
    assert Ranked.from_flashpack(path, silent=True, rank=3, world_size=8).ranks == (3, 8)


def test_the_instance_can_be_made_otherwise(path: Path) -> None:
    class Made(Net):
        flashpack_init_method: ClassVar[str | None] = "of_width"

        @classmethod
        def of_width(cls, width: int) -> Made:
            made = cls(width)
            made.how = "method"
            return made

    Made(3).save_flashpack(path, silent=True)
    assert Made.from_flashpack(path, width=3, silent=True).how == "method"

    def by_function(width: int) -> Made:
        made = Made(width)
        made.how = "function"
        return made

    assert Made.from_flashpack(path, 3, silent=True, init_fn=by_function).how == "function"
    Made.flashpack_init_method = "no_such_method"
    assert not hasattr(Made.from_flashpack(path, 3, silent=True), "how")


def test_class_variables_are_defaults(path: Path) -> None:
    class Picky(Net):
        flashpack_ignore_names: ClassVar[list[str] | None] = ["gain"]
        flashpack_ignore_prefixes: ClassVar[list[str] | None] = ["old."]
        flashpack_ignore_suffixes: ClassVar[list[str] | None] = [".junk"]
        flashpack_coerce_dtype: ClassVar[bool] = True

        def __init__(self) -> None:
            super().__init__()
            del self.gain

    state = {**Net().state_dict(), "old.thing": torch.ones(1), "x.junk": torch.ones(1)}
    penstock.flashpack.pack_to_file(state, path, torch.float16)
    made = Picky.from_flashpack(path, silent=True)
    assert made.layers[2].num_batches_tracked.dtype == torch.int64
    assert made.layers[0].weight.dtype == torch.float16
    with pytest.raises(ValueError, match="Could not assign 1 names: x.junk"):
        Picky.from_flashpack(path, silent=True, ignore_suffixes=["else"])


def test_a_tensor_without_values_is_warned_of(path: Path) -> None:
    state = Net().state_dict()
    del state["layers.0.bias"]
    penstock.flashpack.pack_to_file(state, path)
    with pytest.raises(ValueError, match="Missing 1 parameters: layers.0.bias"):
        Net.from_flashpack(path, silent=True)
    with pytest.warns(UserWarning, match=r"1 tensors are not in the file and have no values.*: layers\.0\.bias"):
        made = Net.from_flashpack(path, silent=True, strict=False)
    assert made.layers[0].bias.is_meta
    assert not made.layers[0].weight.is_meta


def test_tied_parameters_stay_tied(path: Path) -> None:
    class Tied(nn.Module, FlashPackMixin):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 3)
            self.head = nn.Linear(3, 5, bias=False)
            self.head.weight = self.embed.weight
            shared = nn.Parameter(torch.rand(2))
            self.a, self.b = shared, shared

    source = Tied()
    source.save_flashpack(path, silent=True)
    made = Tied.from_flashpack(path, silent=True, strict=True)
    assert made.head.weight is made.embed.weight
    assert made.a is made.b
    assert torch.equal(made.a, source.a)


def test_a_device_is_the_one_that_is_named(path: Path) -> None:
    Net().save_flashpack(path, silent=True)
    with pytest.warns(UserWarning, match="meta device"):
        made = Net.from_flashpack(path, device="meta", silent=True)
    assert all(parameter.is_meta for parameter in made.parameters())


def test_a_broken_file_is_an_error(path: Path) -> None:
    path.write_bytes(b"nothing" * 10)
    with pytest.raises(penstock.FormatError, match=str(path)):
        Net.from_flashpack(path, silent=True)
    with pytest.raises(FileNotFoundError):
        Net.from_flashpack(path.parent / "nowhere", silent=True)
    assert not any(parameter.is_meta for parameter in Net().parameters())  # no hook stays behind


def test_accelerate_is_not_needed(path: Path) -> None:
    Net().save_flashpack(path, silent=True)
    script = """
        import sys
        sys.modules["accelerate"] = None
        import torch
        from penstock.flashpack import FlashPackMixin
        class Net(torch.nn.Linear, FlashPackMixin):
            pass
        Net(2, 2).save_flashpack(sys.argv[1], silent=True)
        print(Net.from_flashpack(sys.argv[1], 2, 2, silent=True).weight.shape)
    """
    assert helpers.run_python(script, str(path)).stdout == "torch.Size([2, 2])\n"


# Parameters without memory


def test_parameters_take_no_memory_while_a_module_is_made() -> None:
    script = """
        import torch
        from penstock.flashpack._empty import empty_parameters
        def resident():
            lines = dict(line.split(":") for line in open("/proc/self/status"))
            return int(lines["VmRSS"].split()[0]) // 1024
        before = resident()
        with empty_parameters():
            model = torch.nn.Sequential(*(torch.nn.Linear(8192, 8192) for _ in range(4)))
        print(resident() - before < 100, all(p.is_meta for p in model.parameters()))
    """
    assert helpers.run_python(script).stdout == "True True\n"


def test_buffers_and_other_threads_are_left_alone() -> None:
    others: list[nn.Module] = []
    with empty_parameters():
        own = nn.BatchNorm1d(3)
        thread = threading.Thread(target=lambda: others.append(nn.Linear(2, 2)))
        thread.start()
        thread.join()
    assert own.weight.is_meta
    assert own.running_var.tolist() == [1, 1, 1]
    assert not others[0].weight.is_meta
    assert not nn.Linear(2, 2).weight.is_meta


def test_special_parameters_are_left_alone() -> None:
    class Special(nn.Parameter):
        pass

    with empty_parameters():
        module = nn.Module()
        module.special = Special(torch.ones(2))
        module.nothing = None
        module.register_parameter("none", None)
        frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        module.frozen = frozen
        module.again = frozen
        module.list = nn.ParameterList([frozen])
    assert type(module.special) is Special
    assert not module.special.is_meta
    assert module.frozen.is_meta
    assert not module.frozen.requires_grad
    assert module.frozen is module.again is module.list[0]
    assert frozen.tolist() == [1, 1]
    assert module.none is None
