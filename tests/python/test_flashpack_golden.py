"""Files that the flashpack package made: ours are the same bytes, and every reader gives the same values."""

from __future__ import annotations

import importlib.util
import json
import math
import struct
from pathlib import Path
from typing import Any

import helpers
import penstock
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from penstock.flashpack import (
    get_flashpack_file_metadata,
    is_flashpack_file,
    iterate_from_flash_tensor,
    pack_to_file,
    read_flashpack_file,
    revert_from_file,
)
from penstock.flashpack.commands import convert_to_flashpack_from_state_dict_file

DATA = Path(__file__).parent.parent / "data"
GOLDEN = DATA / "flashpack"

# torch warns of complex32 whenever it sees it.
pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")


def load_table() -> Any:
    spec = importlib.util.spec_from_file_location("make_flashpack", GOLDEN / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TABLE = load_table()


def expected_of(name: str) -> dict[str, torch.Tensor]:
    """What the file holds, by torch alone."""
    make_state, arguments = TABLE.CASES[name]
    state = make_state()
    names = arguments.get("name_order") or list(state)
    target = arguments.get("target_dtype")
    return {n: state[n] if target is None else state[n].to(target) for n in names if n in state}


def golden(name: str) -> Path:
    return GOLDEN / f"{name}.flashpack"


@pytest.mark.parametrize("name", TABLE.CASES)
def test_a_packed_file_is_the_same_byte_for_byte(tmp_path: Path, name: str) -> None:
    make_state, arguments = TABLE.CASES[name]
    path = tmp_path / "ours.flashpack"
    pack_to_file(make_state(), path, **{"target_dtype": None, **arguments})
    assert path.read_bytes() == golden(name).read_bytes()


@pytest.mark.parametrize(("name", "source", "dtype"), [(n, *rest) for n, rest in TABLE.CONVERTED.items()])
def test_a_converted_file_is_the_same_byte_for_byte(tmp_path: Path, name: str, source: str, dtype: str | None) -> None:
    path = tmp_path / "ours.flashpack"
    convert_to_flashpack_from_state_dict_file(str(DATA / "safetensors" / source), str(path), dtype)
    assert path.read_bytes() == golden(name).read_bytes()


def test_every_golden_file_is_in_the_table() -> None:
    made = {path.stem for path in GOLDEN.glob("*.flashpack")}
    assert made == set(TABLE.CASES) | set(TABLE.CONVERTED)
    assert sum(path.stat().st_size for path in GOLDEN.iterdir() if path.is_file()) < 300_000


@pytest.mark.parametrize("name", TABLE.CASES)
def test_every_reader_gives_the_same_values(name: str) -> None:
    path = golden(name)
    expected = expected_of(name)
    assert is_flashpack_file(path)
    helpers.assert_same_tensors(penstock.load(path), expected)
    helpers.assert_same_tensors(revert_from_file(path), expected)
    helpers.assert_same_tensors(dict(iterate_from_flash_tensor(*read_flashpack_file(path))), expected)
    helpers.assert_same_tensors(dict(penstock.stream(path)), expected)
    with penstock.open(path) as reader:
        helpers.assert_same_tensors({tensor: reader[tensor].load() for tensor in reader}, expected)


@pytest.mark.parametrize("name", TABLE.CASES)
def test_metadata_is_that_of_the_footer(name: str) -> None:
    data = golden(name).read_bytes()
    (length,) = struct.unpack("<Q", data[-16:-8])
    assert get_flashpack_file_metadata(golden(name)) == json.loads(data[-16 - length : -16])


@pytest.mark.parametrize("name", TABLE.CASES)
def test_blocks_are_whole_macroblocks(name: str) -> None:
    data = golden(name).read_bytes()
    storage, metadata = read_flashpack_file(golden(name))
    if metadata["format"] == "flashpack_v3":
        itemsize = getattr(torch, metadata["target_dtype"]).itemsize
        expected = [(metadata["target_dtype"], 0, metadata["total_elems"] * itemsize)]
    else:
        expected = [(block["dtype"], block["offset_bytes"], block["length_bytes"]) for block in metadata["macroblocks"]]
    found = [(str(block.dtype).removeprefix("torch."), helpers.bits_of(block)) for block in storage.blocks]
    assert found == [(dtype, data[begin : begin + length]) for dtype, begin, length in expected]
    assert all(block.ndim == 1 for block in storage.blocks)


def encode(state: dict[str, torch.Tensor], align: int, order: list[str] | None) -> bytes:
    """A second encoder, by the description of the format alone."""
    names = sorted(state, key=lambda name: -state[name].numel()) if order is None else [n for n in order if n in state]
    blocks: dict[str, list[str]] = {}
    for name in names:
        blocks.setdefault(str(state[name].dtype).removeprefix("torch."), []).append(name)
    payload, macroblocks, index = b"", [], []
    for number, (dtype, members) in enumerate(blocks.items()):
        width = state[members[0]].element_size()
        payload += bytes(-len(payload) % (math.lcm(align, width) if align else width))
        begin, cursor, unit = len(payload), 0, (align // math.gcd(align, width) if align else 1)
        for name in members:
            padding = -cursor % unit
            payload += bytes(padding * width) + helpers.bits_of(state[name])
            cursor += padding
            place = {"offset": cursor, "length": state[name].numel()}
            index.append({"name": name, "shape": list(state[name].shape), **place, "macroblock": number})
            cursor += state[name].numel()
        extent = {"offset_bytes": begin, "length_bytes": cursor * width, "length_elems": cursor}
        macroblocks.append({"dtype": dtype, **extent})
    total = sum(block["length_elems"] for block in macroblocks)
    footer: dict[str, Any]
    if len(macroblocks) == 1:
        for record in index:
            del record["macroblock"]
        footer = {"format": "flashpack_v3", "target_dtype": macroblocks[0]["dtype"], "align_bytes": align}
        footer |= {"total_elems": total, "index": index}
    else:
        footer = {"format": "flashpack_v4", "align_bytes": align, "total_payload_bytes": len(payload)}
        footer |= {"total_elems": total, "macroblocks": macroblocks, "index": index}
    text = json.dumps(footer, separators=(",", ":"), ensure_ascii=False).encode()
    return payload + text + struct.pack("<Q", len(text)) + b"FLASHPK\0"


@pytest.mark.parametrize(
    "name", [name for name, (_, arguments) in TABLE.CASES.items() if "target_dtype" not in arguments]
)
def test_the_second_encoder_agrees_with_the_reference(name: str) -> None:
    make_state, arguments = TABLE.CASES[name]
    encoded = encode(make_state(), arguments.get("align_bytes", 128), arguments.get("name_order"))
    assert encoded == golden(name).read_bytes()


@st.composite
def state_dicts(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    names = draw(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), unique=True, max_size=8))
    state = {}
    for number, name in enumerate(names):
        dtype = draw(st.sampled_from(TABLE.DTYPES))
        shape = draw(st.lists(st.integers(0, 5), max_size=4))
        state[name] = TABLE.counting(dtype, tuple(shape), number * 17)
        if draw(st.booleans()) and len(shape) > 1:
            state[name] = state[name].transpose(0, 1)
    return state


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(state=state_dicts(), align=st.sampled_from([0, 1, 2, 3, 5, 16, 128, 512, 1000]), shuffled=st.randoms())
def test_any_state_dict_is_encoded_alike_and_comes_back(
    tmp_path: Path, state: dict[str, torch.Tensor], align: int, shuffled: Any
) -> None:
    path = tmp_path / "any.flashpack"
    order = None
    if shuffled.random() < 0.5:
        order = shuffled.sample(list(state), len(state))
    if sum(tensor.numel() for tensor in state.values()) == 0:
        return
    pack_to_file(state, path, None, name_order=order, align_bytes=align)
    assert path.read_bytes() == encode(state, align, order)
    helpers.assert_same_tensors(revert_from_file(path), state)
    views = dict(iterate_from_flash_tensor(*read_flashpack_file(path)))
    helpers.assert_same_tensors(views, state)
    assert all(view.shape == state[name].shape for name, view in views.items())
