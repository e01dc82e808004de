"""Pickles that would do something if they were executed, or that take a reader apart."""

from __future__ import annotations

import io
import struct
import tarfile
from collections.abc import Iterator
from pathlib import Path

from hostile_case import Case, Family, pickles
from hostile_case import pickles as p

# What would be called, with what. Each leaves a mark, or looks outside, if it is.
MARK = "touch ../outside/was-here"
GADGETS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "os.system": ("os", "system", (MARK,)),
    "posix.system": ("posix", "system", (MARK,)),
    "nt.system": ("nt", "system", (MARK,)),
    "os.popen": ("os", "popen", (MARK,)),
    "os.execv through a dotted name": ("torch", "os.system", (MARK,)),
    "a dotted name through a class": ("collections", "OrderedDict.__init__.__globals__", ()),
    "a dotted name through an allowed function": ("torch._utils", "_rebuild_tensor_v2.__globals__.get", ("os",)),
    "a module's module": ("torch.serialization", "os.system", (MARK,)),
    "builtins.eval": ("builtins", "eval", ("__import__('os').system('touch ../outside/was-here')",)),
    "__builtin__.eval": ("__builtin__", "eval", ("1",)),
    "builtins.exec": ("builtins", "exec", ("open('../outside/was-here', 'w')",)),
    "builtins.open": ("builtins", "open", ("../outside/secret.safetensors",)),
    "builtins.getattr": ("builtins", "getattr", ("x", "upper")),
    "builtins.__import__": ("builtins", "__import__", ("antigravity",)),
    "builtins.compile": ("builtins", "compile", ("1", "x", "eval")),
    "builtins.breakpoint": ("builtins", "breakpoint", ()),
    "builtins.input": ("builtins", "input", ()),
    "subprocess.Popen": ("subprocess", "Popen", (MARK,)),
    "subprocess.check_output": ("subprocess", "check_output", (MARK,)),
    "importlib.import_module": ("importlib", "import_module", ("this",)),
    "runpy.run_path": ("runpy", "run_path", ("../outside/secret.safetensors",)),
    "runpy._run_code": ("runpy", "_run_code", ("1",)),
    "pickle.loads": ("pickle", "loads", ("cos\nsystem\n",)),
    "_pickle.loads": ("_pickle", "loads", ("cos\nsystem\n",)),
    "marshal.loads": ("marshal", "loads", ("c",)),
    "types.FunctionType": ("types", "FunctionType", ("x",)),
    "types.CodeType": ("types", "CodeType", ("x",)),
    "functools.partial": ("functools", "partial", ("x",)),
    "functools.reduce": ("functools", "reduce", ("x", "y")),
    "operator.attrgetter": ("operator", "attrgetter", ("__class__",)),
    "operator.methodcaller": ("operator", "methodcaller", ("upper",)),
    "copyreg._reconstructor": ("copyreg", "_reconstructor", ("x", "y", "z")),
    "copyreg.__newobj__": ("copyreg", "__newobj__", ("x",)),
    "ctypes.CDLL": ("ctypes", "CDLL", ("libc.so.6",)),
    "shutil.rmtree": ("shutil", "rmtree", ("../outside",)),
    "os.remove": ("os", "remove", ("../outside/secret.safetensors",)),
    "os.rename": ("os", "rename", ("../outside/secret.safetensors", "../outside/gone")),
    "pathlib.Path": ("pathlib", "Path", ("../outside",)),
    "webbrowser.open": ("webbrowser", "open", ("file:///dev/null",)),
    "socket.create_connection": ("socket", "create_connection", ("127.0.0.1",)),
    "urllib.request.urlopen": ("urllib.request", "urlopen", ("http://127.0.0.1:9/",)),
    "pty.spawn": ("pty", "spawn", (MARK,)),
    "timeit.main": ("timeit", "main", ()),
    "pdb.run": ("pdb", "run", ("1",)),
    "bdb.Bdb.run": ("bdb", "Bdb.run", ("1",)),
    "cProfile.run": ("cProfile", "run", ("1",)),
    "code.interact": ("code", "interact", ()),
    "doctest.debug_script": ("doctest", "debug_script", ("1",)),
    "pip.main": ("pip", "main", ("install",)),
    "logging.config.listen": ("logging.config", "listen", ()),
    "multiprocessing.util.spawnv_passfds": ("multiprocessing.util", "spawnv_passfds", ("sh",)),
    "asyncio subprocess": ("asyncio.unix_events", "_UnixSubprocessTransport._start", (MARK,)),
    "numpy runstring": ("numpy.testing._private.utils", "runstring", ("1", "x")),
    "numpy.load": ("numpy", "load", ("../outside/secret.safetensors",)),
    "numpy.f2py getlincoef": ("numpy.f2py.crackfortran", "getlincoef", ("1", "x")),
    "numpy memmap": ("numpy", "memmap", ("../outside/secret.safetensors",)),
    "torch.load": ("torch", "load", ("../outside/secret.safetensors",)),
    "torch.storage._load_from_bytes": ("torch.storage", "_load_from_bytes", ("x",)),
    "torch.hub.load": ("torch.hub", "load", ("x", "y")),
    "torch.jit.load": ("torch.jit", "load", ("../outside/secret.safetensors",)),
    "torch.jit parse_type_line (CVE-2022-45907)": ("torch.jit.annotations", "parse_type_line", ("eval('1')", "x", "y")),
    "torch.jit.unsupported_tensor_ops": ("torch.jit.unsupported_tensor_ops", "execWrapper", ("1", "x", "y")),
    "torch rpc PythonUDF (CVE-2024-5480)": ("torch.distributed.rpc.internal", "PythonUDF", ("x", "y", "z")),
    "torch rpc _run_function (CVE-2024-5480)": ("torch.distributed.rpc.internal", "_run_function", ("x",)),
    "torch.utils.cpp_extension.load": ("torch.utils.cpp_extension", "load", ("x", "y")),
    "torch._dynamo guards": ("torch._dynamo.guards", "GuardBuilder.get", ("1",)),
    "torch.fx _forward_from_src": ("torch.fx.graph_module", "_forward_from_src", ("1", "x")),
    "torch.ops.load_library": ("torch", "ops.load_library", ("../outside/secret.safetensors",)),
    "torch UntypedStorage.from_file": ("torch", "UntypedStorage.from_file", ("../outside/secret.safetensors",)),
    "torch.from_file": ("torch", "from_file", ("../outside/secret.safetensors",)),
    "torch.save": ("torch", "save", ("x", "../outside/was-here")),
    "torch._utils._import_dotted_name": ("torch._utils", "_import_dotted_name", ("os.system",)),
    "torch._utils._rebuild_wrapper_subclass": ("torch._utils", "_rebuild_wrapper_subclass", ("x",) * 9),
    "torch._tensor._rebuild_from_type": ("torch._tensor", "_rebuild_from_type", ("x", "y", "z", "w")),
    "a name with a line in it": ("os\x1b[2J", "system", (MARK,)),
    "a module of no name": ("", "", ()),
    "penstock itself": ("penstock", "save", ("x", "../outside/was-here")),
}


def arguments(given: tuple[str, ...]) -> bytes:
    return p.group(*map(p.text, given))


def calls(module: str, attribute: str, given: tuple[str, ...]) -> dict[str, bytes]:
    """The ways in which a pickle can have something called."""
    short_module, short_name = (b"\x8c" + bytes([len(each)]) + each.encode() for each in (module, attribute))
    name = p.name(module, attribute)
    texts = b"".join(map(p.text, given))
    return {
        "REDUCE": name + arguments(given) + b"R",
        "STACK_GLOBAL": short_module + short_name + b"\x93" + arguments(given) + b"R",
        "NEWOBJ": name + arguments(given) + b"\x81",
        "NEWOBJ_EX": name + arguments(given) + b"}\x92",
        "OBJ": b"(" + name + texts + b"o",
        "INST": b"(" + texts + f"i{module}\n{attribute}\n".encode(),
        "BUILD on it": name + b"}" + p.text("__setstate__") + p.text("x") + b"sb",
        "a key of a dict": b"}" + name + arguments(given) + b"R" + b"K\x01s",
        "a state": p.ORDERED_DICT + b"}" + p.text("x") + name + arguments(given) + b"Rsb",
        "a storage's class": p.group(p.text("storage"), name, p.text("0"), p.text("cpu"), p.number(1)) + b"Q",
        "a class by its persistent id": p.group(p.text("module"), name, p.text("x"), p.text("y")) + b"Q",
        "a tensor's type": p.name("torch._tensor", "_rebuild_from_type_v2")
        + p.group(name, name, arguments(given), b"}")
        + b"R",
    }


def gadgets(folder: Path) -> Iterator[Case]:
    for number, (title, (module, attribute, given)) in enumerate(GADGETS.items()):
        for way, body in calls(module, attribute, given).items():
            path = folder / f"{number}-{way.replace(' ', '-')}.pt"
            # Beside a tensor, which open(), stream() and convert() may well find.
            weights = p.tensor(p.storage("FloatStorage", "0", 6), 0, (6,), (1,))
            p.write_zip(path, b"}(" + p.text("w") + weights + p.text("o") + body + b"u", bytes(24))
            yield Case(f"{title} by {way}", path, sound=True)
        path = folder / f"{number}-legacy.pt"
        p.write_legacy(path, calls(module, attribute, given)["REDUCE"], [], b"")
        yield Case(f"{title} in a legacy file", path, sound=True)
        path = folder / f"{number}.bin"
        path.write_bytes(p.whole(calls(module, attribute, given)["REDUCE"]))
        yield Case(f"{title} in a bare pickle", path)


def in_other_places(folder: Path) -> Iterator[Case]:
    """Gadgets where a reader may not expect a pickle."""
    gadget = p.whole(calls("os", "system", (MARK,))["REDUCE"])
    for name in ("pickle", "storages", "tensors"):
        path = folder / f"tar-{name}.pt"
        with tarfile.open(path, "w") as archive:
            for member in ("sys_info", "storages", "tensors", "pickle"):
                data = gadget if member == name else p.whole(b"}" if member == "sys_info" else b"K\x00")
                info = tarfile.TarInfo(member)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        yield Case(f"torch's tar format, gadget in {name} (CVE-2025-32434)", path)
    for number, start in enumerate(
        (b"\x80\x02", b"\x80\x04\x95" + struct.pack("<Q", 20), b"\x80\x05", b"\x80\x00", b"")
    ):
        path = folder / f"bare-{number}.pkl"
        path.write_bytes(start + gadget[2:])
        yield Case(f"a bare pickle that starts with {start[:2].hex() or 'nothing'}", path)
    path = folder / "after-magic.pt"
    path.write_bytes(p.LEGACY_START[:14] + gadget)
    yield Case("a gadget where a legacy file has its version", path)
    path = folder / "sys-info.pt"
    path.write_bytes(p.LEGACY_START[:20] + gadget + p.whole(b"}") + p.whole(b"]"))
    yield Case("a gadget where a legacy file says what machine wrote it", path)
    path = folder / "keys.pt"
    path.write_bytes(p.LEGACY_START + p.whole(b"}") + gadget)
    yield Case("a gadget where a legacy file lists its storages", path)
    path = folder / "second.pt"
    p.write_legacy(path, b"}", [], gadget)
    yield Case("a gadget behind a sound legacy file", path, sound=True)
    path = folder / "numpy-object.pt"
    scalar = p.name("numpy", "dtype") + p.group(p.text("O8"), b"\x89", b"\x88") + b"R"
    body = p.name("numpy._core.multiarray", "scalar") + scalar + b"B" + struct.pack("<I", len(gadget)) + gadget
    p.write_zip(path, body + b"\x86R")
    yield Case("a NumPy object whose bytes are a pickle", path, sound=True)
    for kind in ("V8", "O", "M8[ns]", "S999999999", "U99999999999", "f4, O", "f-4"):
        path = folder / f"numpy-{kind[:2].strip(', ')}{len(kind)}.pt"
        dtype = p.name("numpy", "dtype") + p.group(p.text(kind), b"\x89", b"\x88") + b"R"
        body = p.name("numpy._core.multiarray", "scalar") + dtype + b"C\x04abcd\x86R"
        p.write_zip(path, body)
        yield Case(f"a NumPy scalar of type {kind}", path, sound=True)


def opcodes(folder: Path) -> Iterator[Case]:
    """Streams of opcodes that no pickler writes."""
    deep = 100_000
    streams = {
        "an extension of one byte": b"\x82\x01",
        "an extension of two bytes": b"\x83\x01\x00",
        "an extension of four bytes": b"\x84\x01\x00\x00\x00",
        "a persistent id as text": b"P../outside/secret.safetensors\n",
        "a persistent id that is no tuple": p.text("../outside/secret.safetensors") + b"Q",
        "a persistent id of itself": b"](" + b"eq\x00" + b"h\x00Q",
        "a buffer outside of the pickle": b"\x97",
        "a read-only buffer": b"\x97\x98",
        "text in Python's quotes": b"S'" + b"\\x41" * 10 + b"'\n",
        "text with escapes": b"V\\u0041\n",
        "a long of text": b"L" + b"9" * 100_000 + b"L\n",
        "an integer of text, 100,000 digits": b"I" + b"9" * 100_000 + b"\n",
        "a float of text": b"F1e999\n",
        "a long of negative length": b"\x8b" + struct.pack("<i", -1),
        "a long of 2 GB": b"\x8b" + struct.pack("<i", 2**31 - 1),
        "bytes of 2^63": b"\x8e" + struct.pack("<Q", 2**63),
        "text of 2^64 - 1": b"\x8d" + struct.pack("<Q", 2**64 - 1),
        "a bytearray of 2^62": b"\x96" + struct.pack("<Q", 2**62),
        "a frame of 2^64 - 1": b"\x95" + struct.pack("<Q", 2**64 - 1) + b"N.",
        "a memo entry of 2^32 - 1": b"Nr" + struct.pack("<I", 2**32 - 1),
        "a memo entry that was never set": b"j" + struct.pack("<I", 2**31),
        "a memo entry as text": b"Np4294967295\n",
        "an empty stack": b"R",
        "a mark that is not there": b"t",
        "a stack that is not empty at the end": b"NN",
        "an end within a mark": b"(N",
        "a duplicate of nothing": b"2",
        "lists in lists": b"](" * deep + b"N" + b"e" * deep,
        "dicts in dicts": b"}(K\x00" * deep + b"N" + b"u" * deep,
        "tuples in tuples": b"N" + b"\x85" * deep,
        "calls in calls": b"N" + b"".join((b"\x85", p.name("torch", "Size")[:0])) + (b"\x85" * deep),
        "a list in itself": b"]q\x00h\x00a",
        "a dict in itself": b"}q\x00K\x00h\x00s",
        "a tuple in its own list": b"](q\x00h\x00\x85e",
        "a dict as its own key": b"}q\x00h\x00K\x00s",
        "a call with itself": p.ORDERED_DICT + b"q\x00" + p.text("x") + b"h\x00s",
        "an object as its own state": p.ORDERED_DICT + b"q\x00h\x00b",
        "an unknown object as its own state": p.name("x", "Y") + b")\x81q\x00h\x00b",
        "a state for a list": b"]}b",
        "a state for a class": p.name("torch", "Size") + b"N}" + p.text("x") + b"K\x00s\x86b",
        "a state for an enumeration": p.name("torch", "float32") + b"}" + p.text("x") + b"K\x00sb",
        "a state with __class__": p.ORDERED_DICT + b"}" + p.text("__class__") + b"K\x00sb",
        "a state with __dict__": p.ORDERED_DICT + b"}" + p.text("__dict__") + b"}sb",
        "a state of slots": p.ORDERED_DICT + b"N}" + p.text("__class__") + b"K\x00s\x86b",
        "arguments that are a list": p.name("collections", "OrderedDict") + b"]R",
        "keywords that are a list": p.name("collections", "OrderedDict") + b")]\x92",
        "a global whose name is a number": b"K\x01K\x02\x93",
        "a global of a million letters": p.name("x" * 1_000_000, "y"),
        "two protocols": b"\x80\x04\x80\x02N",
        "protocol 255": b"\x80\xffN",
        "no end": b"N"[:0],
        "text that is not UTF-8": b"X\x02\x00\x00\x00\xff\xfe",
        "half a surrogate pair": b"X\x03\x00\x00\x00\xed\xa0\x80",
        "a key that can't be hashed": b"}]Ns",
        "a set of lists": p.name("builtins", "set") + b"](]e\x85R",
        "a bytearray of 2^40": p.name("builtins", "bytearray") + p.number(2**40) + b"\x85R",
        "a complex of text": p.name("builtins", "complex") + p.text("1j") + b"\x85R",
        "a device of a path": p.name("torch", "device") + p.text("../outside") + b"\x85R",
        "a layout of a module": p.name("torch.serialization", "_get_layout") + p.text("torch.os") + b"\x85R",
        "a size of 2^63 - 1": p.name("torch", "Size") + p.group(p.number(2**63 - 1)) + b"\x85R",
        "text by codecs.encode": p.name("_codecs", "encode") + p.text("x") + p.text("rot13") + b"\x86R",
    }
    for number, (title, body) in enumerate(streams.items()):
        for kind in ("zip", "legacy"):
            path = folder / f"{number}-{kind}.pt"
            if kind == "zip":
                p.write_zip(path, body)
            else:
                p.write_legacy(path, body, [], b"")
            yield Case(f"{title} ({kind})", path, sound=True)


def tensors(folder: Path) -> Iterator[Case]:
    """Tensors that reach out of their storages, by each of the functions that make them."""
    most = 2**63 - 1
    floats = p.storage("FloatStorage", "0", 6)
    utils = "torch._utils"
    fine = p.tensor(floats, 0, (6,), (1,))
    integers = p.tensor(p.storage("LongStorage", "0", 3), 0, (1, 3), (3, 1))

    def call(function: str, *given: bytes, module: str = utils) -> bytes:
        return p.name(module, function) + p.group(*given) + b"R"

    def layout(name: str) -> bytes:
        return call("_get_layout", p.text(name), module="torch.serialization")

    bodies = {
        "more elements than the storage": p.tensor(floats, 0, (7,), (1,)),
        "a stride of 2^63 - 1": p.tensor(floats, 0, (2,), (most,)),
        "2^62 elements of stride 0": p.tensor(floats, 0, (2**62,), (0,)),
        "2^63 - 1 by 2^63 - 1 elements": p.tensor(floats, 0, (most, most), (0, 0)),
        "elements of stride 0, 2^40 of them": p.tensor(floats, 0, (2**40,), (0,)),
        "a negative stride": p.tensor(floats, 5, (6,), (-1,)),
        "a negative offset": p.tensor(floats, -1, (1,), (1,)),
        "an offset of 2^63 - 1": p.tensor(floats, most, (1,), (1,)),
        "65 dimensions": p.tensor(floats, 0, (1,) * 65, (1,) * 65),
        "fewer strides than dimensions": p.tensor(floats, 0, (1, 1), (1,)),
        "a storage of 2^62": p.storage("DoubleStorage", "0", 2**62),
        "a storage of negative size": p.storage("FloatStorage", "0", -1),
        "a storage called ../../outside": p.storage("FloatStorage", "../../outside/secret.safetensors", 2),
        "a storage on a device that is none": call("_rebuild_tensor_v2", b"N", b"K\x00", b")", b")", b"\x89", b"N"),
        "a parameter of text": call("_rebuild_parameter", p.text("x"), b"\x88", p.ORDERED_DICT),
        "a parameter of itself": p.ORDERED_DICT + b"q\x000" + call("_rebuild_parameter", b"h\x00", b"\x88", b"h\x00"),
        "a parameter with a state of functions": call(
            "_rebuild_parameter_with_state", fine, b"\x88", p.ORDERED_DICT, b"}" + p.text("__class__") + b"K\x01s"
        ),
        "a sparse tensor whose indices reach out": call(
            "_rebuild_sparse_tensor",
            layout("torch.sparse_coo"),
            p.group(integers, p.tensor(floats, 0, (3,), (1,)), p.name("torch", "Size") + p.numbers(2) + b"\x85R"),
        ),
        "a sparse tensor of 2^63 - 1": call(
            "_rebuild_sparse_tensor",
            layout("torch.sparse_coo"),
            p.group(integers, p.tensor(floats, 0, (3,), (1,)), p.name("torch", "Size") + p.numbers(most) + b"\x85R"),
        ),
        "a sparse tensor in rows that are wrong": call(
            "_rebuild_sparse_tensor",
            layout("torch.sparse_csr"),
            p.group(integers, integers, p.tensor(floats, 0, (3,), (1,)), p.numbers(9, 9)),
        ),
        "a nested tensor whose parts reach out": call(
            "_rebuild_nested_tensor", p.tensor(floats, 0, (6,), (1,)), integers, integers, integers
        ),
        "a quantized tensor without a scale": call(
            "_rebuild_qtensor", floats, b"K\x00", p.numbers(6), p.numbers(1), b"N", b"\x89", p.ORDERED_DICT
        ),
        "a meta tensor of 2^62": call(
            "_rebuild_meta_tensor_no_storage", p.name("torch", "float32"), p.numbers(2**62), p.numbers(1), b"\x89"
        ),
        "a tensor of an array of objects": call(
            "_rebuild_device_tensor_from_numpy", p.text("x"), p.name("torch", "float32"), p.text("cpu"), b"\x89"
        ),
        "a tensor that is made of itself": b"]q\x000" + call("_rebuild_parameter", b"h\x00", b"\x88", p.ORDERED_DICT),
        "a tensor with hooks": call(
            "_rebuild_tensor_v2",
            floats,
            b"K\x00",
            p.numbers(6),
            p.numbers(1),
            b"\x89",
            p.ORDERED_DICT + p.text("hook") + p.name("os", "system") + b"s",
        ),
        "a tensor of a type of functions": call(
            "_rebuild_from_type_v2",
            p.name("os", "system"),
            p.name("os", "system"),
            p.group(p.text(MARK)),
            b"}",
            module="torch._tensor",
        ),
    }
    for number, (title, body) in enumerate(bodies.items()):
        path = folder / f"{number}.pt"
        p.write_zip(path, body, bytes(24))
        yield Case(title, path, sound=True)


FAMILIES: dict[str, Family] = {
    "pickles that call": gadgets,
    "pickles in other places": in_other_places,
    "opcodes": opcodes,
    "tensors that reach out": tensors,
}
__all__ = ["FAMILIES", "pickles"]
