"""penstock.flashpack: its names, packing and reading."""

from __future__ import annotations

import importlib
import inspect
import os
import stat
from pathlib import Path
from typing import Any

import helpers
import penstock
import penstock.flashpack as flashpack
import pytest
import torch
from penstock import _core
from penstock.flashpack import utils
from torch import nn

# The names of flashpack 0.4.5, with the parameters of its functions as inspect shows them.
SIGNATURES = {
    "serialization.pack_to_file": "state_dict_or_model destination_path target_dtype name_order=None align_bytes=128 "
    "silent=True num_workers=32",
    "serialization.TensorIndexRecord": "name shape offset length macroblock=0",
    "serialization.MacroblockPlan": "dtype offset_bytes length_bytes total_elems align_elems tensors",
    "deserialization.MacroblockSpec": "dtype offset_bytes length_bytes length_elems",
    "deserialization.FlashTensorStorage": "blocks backing_arrays=None",
    "deserialization.get_flashpack_file_metadata": "path",
    "deserialization.is_flashpack_file": "path",
    "deserialization.resolve_shard_strategy": "strategy=None",
    "deserialization.read_flashpack_file": "path device='cpu' chunk_bytes=4194304 num_streams=4 silent=True "
    "metadata=None",
    "deserialization.read_flashpack_file_distributed": "path device src=0 chunk_bytes=4194304 num_streams=4 "
    "silent=True "
    "metadata=None sharded=False shard_strategy=None",
    "deserialization.iterate_from_flash_tensor": "flash_tensor metadata ignore_names=None ignore_prefixes=None "
    "ignore_suffixes=None",
    "deserialization.revert_from_file": "path silent=True",
    "deserialization.assign_from_file": "model path device=None strict=None strict_params=True strict_buffers=False "
    "keep_flash_ref_on_model=False silent=True num_streams=4 chunk_bytes=4194304 ignore_names=None "
    "ignore_prefixes=None "
    "ignore_suffixes=None use_distributed_loading=False distributed_sharded=False distributed_shard_strategy=None "
    "rank=None local_rank=None world_size=None coerce_dtype=False",
    "mixin.FlashPackMixin.from_flashpack": "path args device=None silent=False strict=None strict_params=True "
    "strict_buffers=False keep_flash_ref_on_model=False ignore_names=None ignore_prefixes=None ignore_suffixes=None "
    "num_streams=4 chunk_bytes=4194304 use_distributed_loading=False distributed_sharded=False "
    "distributed_shard_strategy=None rank=None local_rank=None world_size=None coerce_dtype=False init_fn=None kwargs",
    "mixin.FlashPackMixin.save_flashpack": "self destination_path target_dtype=None name_order=None align_bytes=128 "
    "silent=False num_workers=32",
    "utils.maybe_init_distributed": "rank=None local_rank=None world_size=None",
    "utils.effective_read_threads": "requested floor=1",
    "utils.get_module_and_attribute": "model name",
    "utils.require_zstandard": "",
    "utils.string_to_dtype": "string",
    "utils.dtype_to_string": "dtype",
    "utils.get_packing_dtype": "dtype",
    "utils.torch_dtype_to_numpy_dtype": "dtype",
    "utils.human_duration": "seconds",
    "utils.human_num_elements": "elements",
    "utils.timer": "name silent=False",
    "utils.is_ignored_tensor_name": "name ignore_names=None ignore_prefixes=None ignore_suffixes=None",
    "utils.filter_state_dict": "state_dict ignore_names=None ignore_prefixes=None ignore_suffixes=None",
    "utils.diffusers_is_available": "",
    "utils.transformers_is_available": "",
    "commands.filter_kwargs_for_method": "kwargs method",
    "commands.convert_to_flashpack_from_state_dict": "state_dict destination_path dtype=None ignore_names=None "
    "ignore_prefixes=None ignore_suffixes=None silent=True",
    "commands.convert_to_flashpack_from_model": "model destination_path dtype=None ignore_names=None "
    "ignore_prefixes=None "
    "ignore_suffixes=None silent=True",
    "commands.convert_to_flashpack_from_state_dict_file": "path destination_path=None dtype=None ignore_names=None "
    "ignore_prefixes=None ignore_suffixes=None silent=True",
    "commands.convert_to_flashpack_from_diffusers_repo_id_or_dir": "model_dir destination_path dtype=None "
    "ignore_names=None ignore_prefixes=None ignore_suffixes=None silent=True kwargs",
    "commands.convert_to_flashpack_from_transformers_repo_id_or_dir": "model_dir destination_path dtype=None "
    "ignore_names=None ignore_prefixes=None ignore_suffixes=None silent=True kwargs",
    "commands.convert_to_flashpack": "model_or_state_dict_or_path_or_repo_id destination_path=None dtype=None "
    "ignore_names=None ignore_prefixes=None ignore_suffixes=None use_transformers=False use_diffusers=False "
    "silent=True "
    "kwargs",
    "commands.revert_from_flashpack": "path destination_path=None silent=True",
}
CONSTANTS = {
    "MAGIC": b"FLASHPK\0",
    "FILE_FORMAT_V3": "flashpack_v3",
    "FILE_FORMAT_V4": "flashpack_v4",
    "DEFAULT_ALIGN_BYTES": 128,
    "DEFAULT_NUM_WRITE_WORKERS": 32,
    "DEFAULT_NUM_STREAMS": 4,
    "DEFAULT_CHUNK_BYTES": 4 * 2**20,
    "SHARD_ALIGN_BYTES": 4096,
    "DEFAULT_SHARD_BYTES": 256 * 2**20,
    "SHARD_STRATEGY_CONTIGUOUS": "contiguous",
    "SHARD_STRATEGY_WINDOWS": "windows",
    "SHARD_STRATEGIES": ("contiguous", "windows"),
    "DEFAULT_SHARD_STRATEGY": "contiguous",
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.flashpack"


def described(parameter: inspect.Parameter) -> str:
    return parameter.name if parameter.default is parameter.empty else f"{parameter.name}={parameter.default!r}"


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_function_takes_what_its_namesake_takes(name: str) -> None:
    module, *attributes = name.split(".")
    found: Any = importlib.import_module(f"penstock.flashpack.{module}")
    for attribute in attributes:
        found = getattr(found, attribute)
    own = list(inspect.signature(found).parameters.values())
    ours = {parameter.name: described(parameter) for parameter in own}
    expected = SIGNATURES[name].split()
    for text in expected:
        parameter, has_default, _ = text.partition("=")
        # Where theirs must be given ours may have a default.
        assert ours[parameter] == text if has_default else parameter in ours
    positional = [p.name for p in own if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    assert positional == [text.partition("=")[0] for text in expected][: len(positional)]
    added = [p for p in own if p.name not in {text.partition("=")[0] for text in expected}]
    assert all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in added)


def test_the_constants_are_the_same() -> None:
    from penstock.flashpack import constants

    assert {name: getattr(constants, name) for name in CONSTANTS} == CONSTANTS
    assert constants.U64LE.pack(258) == b"\x02\x01\0\0\0\0\0\0"


def test_the_top_has_the_names_of_its_namesake_and_of_its_submodules() -> None:
    for name in (
        *("FlashPackMixin", "patch_integrations", "assign_from_file", "is_flashpack_file"),
        *("get_flashpack_file_metadata", "read_flashpack_file_distributed", "pack_to_file", "install_as_flashpack"),
    ):
        assert callable(getattr(flashpack, name))
        assert name in flashpack.__all__
    assert (flashpack.__version__, flashpack.version, flashpack.version_tuple) == ("0.4.5", "0.4.5", (0, 4, 5))
    for name in ("constants", "serialization", "deserialization", "mixin", "utils", "commands", "integrations"):
        assert inspect.ismodule(getattr(flashpack, name))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = flashpack.no_such_name


def test_importing_it_imports_no_model_library() -> None:
    script = """
        import sys, penstock
        assert "penstock.flashpack" not in sys.modules
        import penstock.flashpack, penstock.flashpack.commands
        penstock.flashpack.deserialization.assign_from_file
        names = ("transformers", "diffusers", "accelerate", "huggingface_hub", "safetensors")
        print([name for name in names if name in sys.modules])
    """
    assert helpers.run_python(script).stdout == "[]\n"


# Packing


def test_scalars_empties_and_strides_come_back_as_they_were(path: Path) -> None:
    state = {
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 4),
        "transposed": torch.arange(24.0).reshape(4, 6).t(),
        "every other": torch.arange(40, dtype=torch.int16).reshape(4, 10)[1:, ::2],
        "expanded": torch.arange(3.0).expand(5, 3),
        "conjugated": torch.randn(3, 4, dtype=torch.complex64).conj(),
        "parameter": nn.Parameter(torch.randn(3)),
    }
    flashpack.pack_to_file(state, path)
    expected = {name: tensor.detach().resolve_conj() for name, tensor in state.items()}
    helpers.assert_same_tensors(flashpack.revert_from_file(path), expected)
    views = dict(flashpack.iterate_from_flash_tensor(*flashpack.read_flashpack_file(path)))
    helpers.assert_same_tensors(views, expected)
    assert views["scalar"].shape == ()


def test_a_module_is_packed_by_its_state_dict(path: Path) -> None:
    model = nn.BatchNorm1d(3)
    flashpack.pack_to_file(model, str(path), None)
    helpers.assert_same_tensors(flashpack.revert_from_file(path), dict(model.state_dict()))


def test_folders_are_made_and_permissions_are_those_of_any_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "model.flashpack"
    old = os.umask(0o027)
    try:
        flashpack.pack_to_file({"x": torch.ones(2)}, path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        path.chmod(0o604)
        flashpack.pack_to_file({"x": torch.ones(3)}, path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o604
    finally:
        os.umask(old)
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize(
    ("state", "arguments", "message"),
    [
        ({}, {}, "^No tensors to pack$"),
        ({"x": torch.ones(1)}, {"name_order": ["y"]}, "^No tensors to pack$"),
        ({"x": torch.ones(1)}, {"name_order": ["x", "x"]}, "^name_order has 'x' twice$"),
        ({"x": torch.ones(1)}, {"align_bytes": -1}, "^align_bytes must be >= 0, not -1$"),
        (
            {"x": torch.ones(1)},
            {"target_dtype": "float16"},
            "^Unsupported dtype in state dict: 'float16' is not a torch dtype$",
        ),
        (
            {"x": torch.ones(1)},
            {"target_dtype": torch.qint8},
            "^Unsupported dtype for packing: a FlashPack file can't hold elements of torch.qint8$",
        ),
        (
            {"x": torch.ones(1)},
            {"target_dtype": torch.float4_e2m1fn_x2},
            "^4-bit data types are not supported: a FlashPack file can't hold elements of torch.float4_e2m1fn_x2$",
        ),
        ({"x": torch.empty(0), "y": torch.empty(2, 0)}, {}, "needs at least one element$"),
        ({"x": 3}, {}, "^x: expected a tensor, not int$"),
        ({"x": 3}, {"target_dtype": torch.float16}, "^x: expected a torch tensor, not int$"),
        ({1: torch.ones(1)}, {}, "^tensor names are strings, not int$"),
        ({"\ud800": torch.ones(1)}, {}, "UTF-8"),
        ({"x": torch.ones(1, device="meta")}, {}, "^x: a tensor on the meta device has no data$"),
        (
            {"x": torch.ones(1, dtype=torch.int8, device="meta")},
            {"target_dtype": torch.float16},
            "^x: a tensor of torch.int8 on the meta device can't be converted to torch.float16$",
        ),
        ({"x": torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)}, {}, "x"),
        ([torch.ones(1)], {}, "^expected a state dict or a module, not list$"),
    ],
)
def test_what_can_not_be_packed_is_refused(
    path: Path, state: Any, arguments: Any, message: str, no_leaks: None
) -> None:
    path.write_bytes(b"what was there before")
    with pytest.raises(penstock.Error, match=message) as caught:
        flashpack.pack_to_file(state, path, **{"target_dtype": None, **arguments})
    assert isinstance(caught.value, (ValueError, NotImplementedError))
    assert len(str(caught.value).splitlines()) == 1
    assert path.read_bytes() == b"what was there before"


@pytest.mark.parametrize("block", [None, 65536])
def test_target_dtype_converts_everything(
    path: Path, block: int | None, monkeypatch: pytest.MonkeyPatch, no_leaks: None
) -> None:
    if block is not None:
        monkeypatch.setenv("PENSTOCK_BLOCK_SIZE", str(block))
    state = {
        "float": torch.randn(3, 5),
        "half": torch.randn(7).bfloat16(),
        "integer": torch.arange(-5, 6).reshape(11, 1).expand(11, 3),
        "byte": torch.arange(255, dtype=torch.uint8)[::3],
        "flag": torch.tensor([True, False]),
        "scalar": torch.tensor(7),
        "empty": torch.empty(0, 2, dtype=torch.int32),
        "same": torch.randn(4).half(),
        "pieces": torch.randint(-100, 100, (300, 400)).t(),
    }
    for target in (torch.float16, torch.float64, torch.int32, torch.bool, torch.float8_e5m2, torch.complex64):
        flashpack.pack_to_file(state, path, target)
        expected = {name: tensor.to(target) for name, tensor in state.items()}
        helpers.assert_same_tensors(flashpack.revert_from_file(path), expected)
        assert os.listdir(path.parent) == [path.name]


@pytest.mark.filterwarnings("ignore:Casting complex values to real discards the imaginary part")
def test_complex_numbers_can_become_real_ones(path: Path) -> None:
    state = {"x": torch.tensor([1 - 2j, 3 + 4j])}
    flashpack.pack_to_file(state, path, torch.float32)
    assert flashpack.revert_from_file(path)["x"].tolist() == [1.0, 3.0]


def test_converting_takes_no_second_copy(path: Path) -> None:
    """128 MiB of halves and 256 MiB of floats are written."""
    script = """
        import resource, sys, torch
        from penstock.flashpack import pack_to_file, revert_from_file

        pack_to_file({"x": torch.ones(10, dtype=torch.int8)}, sys.argv[1], torch.float32)
        state = {f"t{i}": torch.full((2**22,), i, dtype=getattr(torch, sys.argv[2])) for i in range(16)}
        def anonymous():
            lines = dict(line.split(":") for line in open("/proc/self/status"))
            return int(lines["RssAnon"].split()[0]) // 1024
        before, peak = anonymous(), 0
        def look(done, total):
            global peak
            peak = max(peak, anonymous())
        pack_to_file(state, sys.argv[1], getattr(torch, sys.argv[3]), progress=look)
        print(peak - before < 96, peak > 0)
        loaded = revert_from_file(sys.argv[1])
        print([loaded[f"t{i}"][-1].item() for i in range(16)] == list(range(16)))
    """
    for source, target in (("float32", "float16"), ("int8", "float32")):
        lines = helpers.run_python(script, str(path), source, target).stdout.splitlines()
        assert lines == ["True True", "True"]


def test_phases_are_printed_unless_silent(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flashpack.pack_to_file({"x": torch.ones(2)}, path, None, silent=False)
    lines = capsys.readouterr().out.splitlines()
    assert {line.split(":")[0] for line in lines} >= {"build_index", "write", "sync", "rename"}
    assert all(line.endswith("s") and line.split(": ")[1][0].isdigit() for line in lines)
    flashpack.read_flashpack_file(path, silent=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["read_metadata", "read_payload"]
    flashpack.pack_to_file({"x": torch.ones(2)}, path)
    flashpack.read_flashpack_file(path)
    flashpack.revert_from_file(path)
    assert capsys.readouterr() == ("", "")


# Reading


def test_blocks_are_writable_and_outlive_the_file(path: Path) -> None:
    flashpack.pack_to_file({"a": torch.arange(6.0), "b": torch.arange(4)}, path)
    storage, metadata = flashpack.read_flashpack_file(path)
    assert (len(storage), storage.device, storage.block(1).dtype) == (2, torch.device("cpu"), torch.int64)
    views = dict(flashpack.iterate_from_flash_tensor(storage, metadata, ignore_names=["b"]))
    assert list(views) == ["a"]
    before = path.read_bytes()
    views["a"].mul_(2)
    assert storage.block(0)[:6].tolist() == [0, 2, 4, 6, 8, 10]
    assert path.read_bytes() == before
    path.unlink()
    assert views["a"].sum() == 30
    assert flashpack.FlashTensorStorage([]).device == torch.device("cpu")


def test_one_tensor_stands_for_its_storage(path: Path) -> None:
    flashpack.pack_to_file({"a": torch.arange(6.0).reshape(2, 3), "s": torch.tensor(2.0)}, path)
    storage, metadata = flashpack.read_flashpack_file(path)
    views = dict(flashpack.iterate_from_flash_tensor(storage.block(0), metadata))
    assert views["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert views["s"].shape == ()


def test_given_metadata_is_used(path: Path) -> None:
    flashpack.pack_to_file({"a": torch.ones(2)}, path)
    metadata = flashpack.get_flashpack_file_metadata(path)
    _, returned = flashpack.read_flashpack_file(path, metadata=metadata)
    assert returned is metadata


def test_blocks_reach_another_device_in_pieces(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There need be no other device here: the way by pieces is taken to the CPU."""
    from penstock.flashpack import _blocks, deserialization

    state = {"a": torch.randn(1000), "b": torch.arange(77), "empty": torch.empty(0, dtype=torch.uint8)}
    flashpack.pack_to_file(state, path)
    monkeypatch.setattr(
        deserialization, "read_blocks", lambda core: _blocks.read_blocks_to(core, torch.device("cpu"), 256)
    )
    helpers.assert_same_tensors(dict(flashpack.iterate_from_flash_tensor(*flashpack.read_flashpack_file(path))), state)
    storage, _ = flashpack.read_flashpack_file(path, "meta")
    assert [(block.device.type, block.numel()) for block in storage.blocks] == [
        ("meta", 1000),
        ("meta", 77),
        ("meta", 0),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"macroblock": 1}, "^x: Index entry references invalid macroblock 1, there are 1$"),
        ({"macroblock": -1}, "^x: Index entry references invalid macroblock -1, there are 1$"),
        ({"offset": 1}, "^Could not get tensor for record x: elements 1 to 3 are not in its macroblock, which has 2$"),
        (
            {"offset": -1},
            "^Could not get tensor for record x: elements -1 to 1 are not in its macroblock, which has 2$",
        ),
        ({"shape": [3]}, r"^Could not get tensor for record x: shape \[3\] does not have 2 elements$"),
        ({"shape": [-1, -2]}, r"^Could not get tensor for record x: shape \[-1, -2\] does not have 2 elements$"),
    ],
)
def test_metadata_that_does_not_fit_its_blocks_is_refused(change: dict[str, Any], message: str) -> None:
    metadata = {"index": [{"name": "x", "shape": [2], "offset": 0, "length": 2, **change}]}
    with pytest.raises(ValueError, match=message):
        next(flashpack.iterate_from_flash_tensor(torch.ones(2), metadata))


# Small helpers


def test_durations_and_counts_are_for_people() -> None:
    durations = {0.0: "0.00ns", 1.09e-5: "10.90µs", 0.0032: "3.20ms", 1.5: "1.50s", 125.4: "2m5s", 3599.6: "1h0m0s"}
    assert {seconds: utils.human_duration(seconds) for seconds in durations} == durations
    counts = {999: "999", 1000: "1000", 1500: "1.50K", 2_500_000: "2.50M", 7_240_000_000: "7.24B"}
    assert {count: utils.human_num_elements(count) for count in counts} == counts


def test_a_timer_prints_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    with utils.timer("work"):
        pass
    with utils.timer("quiet", silent=True):
        pass
    with pytest.raises(KeyError), utils.timer("broken"):
        raise KeyError
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("work: ")


def test_types_have_names() -> None:
    assert utils.string_to_dtype("half") is torch.float16
    assert utils.dtype_to_string(torch.bfloat16) == "bfloat16"
    assert utils.get_packing_dtype(torch.bfloat16) is torch.uint16
    assert utils.get_packing_dtype(torch.float8_e8m0fnu) is torch.uint8
    assert utils.get_packing_dtype(torch.complex32) is torch.uint32
    assert utils.get_packing_dtype(torch.float32) is torch.float32
    assert utils.torch_dtype_to_numpy_dtype(torch.bool)(1) == 1
    assert utils.torch_dtype_to_numpy_dtype(torch.complex32).__name__ == "uint32"
    for wrong in ("float33", "nn", 3):
        with pytest.raises(ValueError, match="is not the name of a torch dtype"):
            utils.string_to_dtype(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="qint8"):
        utils.get_packing_dtype(torch.qint8)


def test_names_are_left_out_by_name_prefix_and_suffix() -> None:
    state = {name: torch.ones(1) for name in ("a", "b.weight", "b.bias", "c.bias")}
    assert list(utils.filter_state_dict(state, ["a"], ["b."], None)) == ["c.bias"]
    assert list(utils.filter_state_dict(state, ignore_suffixes=[".bias"])) == ["a", "b.weight"]
    assert list(utils.filter_state_dict(state, [], [], [])) == list(state)


def test_attributes_are_found_in_their_modules() -> None:
    model = nn.Sequential(nn.Linear(1, 2), nn.Sequential(nn.Linear(2, 1)))
    assert utils.get_module_and_attribute(model, "1.0.bias") == (model[1][0], "bias")
    assert utils.get_module_and_attribute(model[0], "bias") == (model[0], "bias")
    with pytest.raises(ValueError, match=r"^Module not found: 1\.3, in Sequential$"):
        utils.get_module_and_attribute(model, "1.3.bias")


def test_threads_are_held_to_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = len(os.sched_getaffinity(0))
    assert utils.effective_read_threads(10_000) == cpus
    assert utils.effective_read_threads(0) == 1
    assert utils.effective_read_threads(10_000, floor=cpus + 3) == cpus + 3
    monkeypatch.setenv("FLASHPACK_NO_THREAD_CLAMP", "1")
    assert utils.effective_read_threads(10_000) == 10_000


def test_one_process_starts_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    utils.maybe_init_distributed()
    assert not torch.distributed.is_initialized()
    monkeypatch.setenv("WORLD_SIZE", "many")
    with pytest.raises(ValueError, match="WORLD_SIZE"):
        utils.maybe_init_distributed()


def test_a_file_that_is_replaced_while_it_is_opened_is_not_mixed_with_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.flashpack"
    tensors = {"a": torch.zeros(64), "b": torch.ones(64)}
    flashpack.pack_to_file(tensors, path, name_order=["a", "b"])
    read_footer = _core.flashpack_footer

    def replace_once(text: str) -> str:
        footer = read_footer(text)
        monkeypatch.undo()
        flashpack.pack_to_file(tensors, path, name_order=["b", "a"])
        return footer

    monkeypatch.setattr(_core, "flashpack_footer", replace_once)
    helpers.assert_same_tensors(
        dict(flashpack.iterate_from_flash_tensor(*flashpack.read_flashpack_file(path))), tensors
    )


def test_a_single_text_to_ignore_is_not_taken_for_its_letters() -> None:
    assert utils.is_ignored_tensor_name("layer.weight", ignore_prefixes="layer.")
    assert utils.is_ignored_tensor_name("layer.weight", ignore_names="layer.weight")
    assert not utils.is_ignored_tensor_name("lm_head", "all of them", "layer.", ".d")
