"""penstock.accelerate: what is replaced, for how long, and that all of it comes back."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import helpers
import penstock
import pytest
import safetensors
import safetensors.torch
import torch
from accelerate_helpers import STOCK, Counts, decelerated, originals_in_place

__all__ = ["decelerated"]  # a fixture that every test uses


def module_with(**names: Any) -> ModuleType:
    """A module of somebody's, which has imported names."""
    module = ModuleType("somebodys_module")
    vars(module).update(names)
    sys.modules[module.__name__] = module
    return module


def test_replaces_and_restores_every_name() -> None:
    handle = penstock.accelerate()
    assert safetensors.safe_open is not STOCK.safe_open
    assert safetensors.torch.safe_open is safetensors.safe_open
    assert safetensors.torch.load_file is not STOCK.load_file
    assert torch.load is torch.serialization.load is not STOCK.load
    assert torch.save is torch.serialization.save is not STOCK.save
    assert repr(handle).startswith("<penstock.Acceleration of transformers, ")
    handle.undo()
    assert originals_in_place()
    assert torch.serialization.load is STOCK.load
    assert repr(handle).endswith(", undone>")


def test_names_that_a_module_imported_before_are_replaced_and_restored() -> None:
    module = module_with(read=STOCK.load_file, opener=STOCK.safe_open, torch_load=STOCK.load, number=7)
    with penstock.accelerate():
        assert module.read is safetensors.torch.load_file is not STOCK.load_file
        assert module.opener is safetensors.safe_open
        assert module.torch_load is torch.load
        assert module.number == 7
    assert (module.read, module.opener, module.torch_load) == (STOCK.load_file, STOCK.safe_open, STOCK.load)


def test_names_that_a_module_takes_meanwhile_are_restored_too() -> None:
    module = module_with()
    with penstock.accelerate():
        module.__dict__["read"] = safetensors.torch.load_file
    assert module.__dict__["read"] is STOCK.load_file


def test_what_somebody_has_kept_is_the_original_again(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    with penstock.accelerate():
        kept = {"save": safetensors.torch.save_file, "load": safetensors.torch.load_file, "open": safetensors.safe_open}
        torch_functions = [torch.save, torch.load]
    counts = Counts()
    kept["save"](tensors, path)
    helpers.assert_same_tensors(kept["load"](path), tensors)
    assert type(kept["open"](path, "pt")) is STOCK.safe_open
    torch_functions[0](tensors, path.with_suffix(".pt"))
    helpers.assert_same_tensors(torch_functions[1](path.with_suffix(".pt")), tensors)
    assert not any(counts.served(entry) for entry in penstock.accelerated().served)


def test_calls_nest_and_only_the_last_end_counts() -> None:
    outer = penstock.accelerate()
    replaced = safetensors.safe_open
    with penstock.accelerate():
        assert safetensors.safe_open is replaced
        with penstock.accelerate("torch"):
            pass
        assert torch.load is not STOCK.load
    assert safetensors.safe_open is replaced
    outer.undo()
    outer.undo()
    assert originals_in_place()


def test_decelerate_takes_back_every_call_and_handles_are_harmless_then() -> None:
    handles = [penstock.accelerate(), penstock.accelerate("safetensors")]
    penstock.decelerate()
    assert originals_in_place()
    again = penstock.accelerate("safetensors")
    for handle in handles:
        handle.undo()
    assert safetensors.safe_open is not STOCK.safe_open
    again.undo()


def test_an_error_in_the_block_takes_it_back() -> None:
    with pytest.raises(KeyError), penstock.accelerate():
        raise KeyError("x")
    assert originals_in_place()


def test_libraries_can_be_chosen() -> None:
    with penstock.accelerate("torch", "torch") as handle:
        assert handle.libraries == penstock.accelerated().libraries == ("torch",)
        assert torch.load is not STOCK.load
        assert safetensors.safe_open is STOCK.safe_open
    with penstock.accelerate("safetensors"):
        assert torch.load is STOCK.load
        assert safetensors.torch.save_file is not STOCK.save_file
    assert penstock.accelerated().libraries == ()


def test_a_library_that_is_not_known_is_named_with_what_there_is() -> None:
    with pytest.raises(penstock.ArgumentError) as error:
        penstock.accelerate("transformer")
    assert str(error.value) == (
        "'transformer' can't be accelerated, but transformers, diffusers, accelerate, peft, safetensors, torch can; "
        "did you mean 'transformers'?"
    )
    with pytest.raises(penstock.ArgumentTypeError, match=r"named by strings, not by int"):
        penstock.accelerate(3)  # type: ignore[arg-type]
    assert originals_in_place()


def test_many_threads_switch_and_load_at_once(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    STOCK.save_file(tensors, path)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(20):
                with penstock.accelerate():
                    helpers.assert_same_tensors(safetensors.torch.load_file(path), tensors)
                    with safetensors.safe_open(path, "pt") as file:
                        assert helpers.same(file.get_slice("embed.weight")[3:7], tensors["embed.weight"][3:7])
        except BaseException as problem:
            failures.append(problem)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert originals_in_place()


def test_importing_penstock_and_asking_imports_no_torch() -> None:
    script = """
    import sys, penstock
    assert not any(name.startswith("penstock._accelerate") for name in sys.modules)
    handle = penstock.accelerate()
    print("torch" in sys.modules, penstock.accelerated().libraries == handle.libraries)
    """
    assert helpers.run_python(script).stdout == "False True\n"


def test_libraries_that_are_imported_later_are_accelerated_and_come_back() -> None:
    script = """
    import sys, penstock
    finders = list(sys.meta_path)
    with penstock.accelerate():
        import safetensors.torch
        from safetensors import safe_open
        import torch
        assert torch.load.__module__ == "torch.serialization" and torch.load is torch.serialization.load
        replaced = [safe_open, safetensors.torch.load_file, torch.load]
        assert torch.load.__wrapped__ is not torch.load
    now = [safe_open, safetensors.torch.load_file, torch.load]
    print([a is not b for a, b in zip(replaced, now)], sys.meta_path == finders, safe_open.__module__)
    """
    assert helpers.run_python(script).stdout == "[True, True, True] True builtins\n"


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        ("1", "transformers,diffusers,accelerate,peft,safetensors,torch"),
        ("torch, safetensors", "safetensors,torch"),
        ("0", ""),
        ("", ""),
    ],
)
def test_the_environment_accelerates_whoever_imports_penstock_auto(value: str, printed: str) -> None:
    script = "import penstock.auto; print(','.join(penstock.accelerated().libraries))"
    assert helpers.run_python(script, PENSTOCK_ACCELERATE=value).stdout == printed + "\n"


def test_an_environment_that_names_nothing_known_is_refused() -> None:
    failed = helpers.run_python("import penstock.auto", check=False, PENSTOCK_ACCELERATE="tensorflow")
    assert failed.returncode == 1
    assert "PENSTOCK_ACCELERATE=tensorflow: 'tensorflow' can't be accelerated, but transformers" in failed.stderr


def test_penstock_auto_runs_a_program(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import sys, penstock\nprint(__name__, sys.argv[1:], sys.path[0])\n"
                       "print(len(penstock.accelerated().libraries))\n")  # fmt: skip
    run = "import runpy, sys; sys.argv = ['auto', *sys.argv[1:]]; runpy.run_module('penstock.auto', None, '__main__')"
    assert helpers.run_python(run, str(program), "a", "b").stdout == f"__main__ ['a', 'b'] {tmp_path}\n6\n"
    assert helpers.run_python(run, str(program), PENSTOCK_ACCELERATE="0").stdout.endswith("\n0\n")
    assert helpers.run_python(run, "-m", "calendar", "2026", "11").stdout.startswith("   November 2026\n")
    failed = helpers.run_python(run, check=False)
    assert failed.stderr == "usage: python -m penstock.auto (PROGRAM.py | -m MODULE) [ARGUMENT...]\n"


def test_torch_may_be_imported_by_penstock_itself(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """In a program that did not import it."""
    STOCK.save_file(tensors, path)
    script = """
    import sys, penstock, safetensors
    penstock.accelerate()
    with safetensors.safe_open(sys.argv[1], framework="pt") as file:
        print(tuple(file.get_tensor("embed.weight").shape))
    import torch
    print(torch.load.__wrapped__ is not torch.load)
    """
    shape = tuple(tensors["embed.weight"].shape)
    assert helpers.run_python(script, str(path)).stdout == f"{shape}\nTrue\n"
