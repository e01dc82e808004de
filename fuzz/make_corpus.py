"""Makes the seed corpora: the golden files, and small files that are broken in one way each.

python fuzz/make_corpus.py
"""

from __future__ import annotations

import io
import random
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "tests" / "data"


def record(begin: int, end: int, dtype: str = "U8", shape: str | None = None) -> str:
    return f'{{"dtype":"{dtype}","shape":{shape or [end - begin]},"data_offsets":[{begin},{end}]}}'


HEADERS = {
    "two": f'{{"a":{record(0, 1)},"b":{record(1, 3)}}}',
    "spaces": f'{{ "a" :\n{record(0, 4, "F32", "[ 1 ]")} }}\t\r\n ',
    "reordered": '{"a":{"data_offsets":[0,2],"shape":[],"dtype":"BF16"},"__metadata__":{"k":"v"}}',
    "empty_tensors": f'{{"a":{record(0, 0)},"b":{record(0, 2)},"c":{record(2, 2, "F64", "[3,0]")}}}',
    "sub_byte": f'{{"a":{record(0, 3, "F4", "[2,3]")},"b":{record(3, 6, "F6_E2M3", "[4]")}}}',
    "escapes": f'{{"\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\ud834\\udd1e":{record(0, 1)}}}',
    "huge": f'{{"a":{record(0, 2**62)}}}',
    "duplicate": f'{{"a":{record(0, 1)},"a":{record(1, 2)}}}',
    "duplicate_escaped": f'{{"a":{record(0, 1)},"\\u0061":{record(1, 2)}}}',
    "duplicate_metadata": '{"__metadata__":{"k":"1","k":"2"}}',
    "duplicate_field": '{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
    "unknown_field": '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":{"y":[null]}}}',
    "array_record": '{"a":["U8",[1],[0,1]]}',
    "hole": f'{{"a":{record(0, 1)},"b":{record(2, 3)}}}',
    "overlap": f'{{"a":{record(0, 2)},"b":{record(1, 3)}}}',
    "overflow": f'{{"a":{record(0, 1, "F32", "[4294967296,4294967296]")}}}',
    "negative": f'{{"a":{record(0, 1, "U8", "[-1]")}}}',
    "fraction": f'{{"a":{record(0, 1, "U8", "[1.5]")}}}',
    "backwards": '{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}}',
    "trailing": '{},"__metadata__":{}}',
    "surrogate": '{"\\ud800":1}',
    "unfinished": '{"a":{"dtype":"U8","shape":[1',
    "deep": "{" + '"a":{' * 50,
}

INDEXES = {
    "two": '{"metadata":{"total_size":3},"weight_map":{"a":"1.st","b":"2.st","c":"1.st"}}',
    "odd_metadata": '{"metadata":{"a":null,"b":[1,{"c":2.5}],"d":"t","e":true},"weight_map":{}}',
    "other_keys": '{"x":[],"weight_map":{"a":"f"},"y":-1e5}',
    "null_metadata": '{"metadata":null,"weight_map":{"a":"f"}}',
    "twice": '{"weight_map":{"a":"f","\\u0061":"f"}}',
    "parent": '{"weight_map":{"a":"../f"}}',
    "nul": '{"weight_map":{"a":"f\\u0000"}}',
    "empty_name": '{"weight_map":{"a":""}}',
    "number": '{"weight_map":{"a":1}}',
    "unfinished": '{"weight_map":{"a":',
    "no_map": "{}",
}


def entry(name: str, shape: str, offset: int, length: int, block: int | None = None) -> str:
    number = "" if block is None else f',"macroblock":{block}'
    return f'{{"name":"{name}","shape":{shape},"offset":{offset},"length":{length}{number}}}'


def block(dtype: str, offset: int, nbytes: int, elements: int, more: str = "") -> str:
    return f'{{"dtype":"{dtype}","offset_bytes":{offset},"length_bytes":{nbytes},"length_elems":{elements}{more}}}'


def version_3(dtype: str, elements: int, *entries: str, more: str = "") -> str:
    index = ",".join(entries)
    return (
        f'{{"format":"flashpack_v3","target_dtype":"{dtype}","align_bytes":128,"total_elems":{elements},'
        f'"index":[{index}]{more}}}'
    )


def version_4(blocks: list[str], *entries: str) -> str:
    return (
        f'{{"format":"flashpack_v4","align_bytes":0,"macroblocks":[{",".join(blocks)}],"index":[{",".join(entries)}]}}'
    )


FOOTERS = {
    "one_block": version_3("float32", 3, entry("a", "[2]", 0, 2), entry("s", "[]", 2, 1)),
    "two_blocks": version_4(
        [block("uint8", 0, 3, 3), block("half", 4, 4, 2)], entry("u", "[3]", 0, 3, 0), entry("h", "[2]", 0, 2, 1)
    ),
    "single_block_v4": version_4([block("int8", 0, 2, 2)], entry("a", "[2]", 0, 2)),
    "metadata": version_3("bool", 1, entry("a", "[1]", 0, 1), more=',"metadata":{"k":"v"}'),
    "reordered": '{ "index" : [], "total_elems":1 ,\n"target_dtype":"chalf","format":"flashpack_v3" }',
    "empty_tensors": version_3("complex128", 2, entry("e", "[0,3]", 1, 0), entry("a", "[2]", 0, 2)),
    "empty_block": version_4([block("uint8", 0, 1, 1), block("int64", 1, 0, 0)]),
    "misaligned_block": version_4([block("float64", 1, 8, 1), block("uint8", 0, 1, 1)], entry("d", "[]", 0, 1, 0)),
    "escapes": version_3("uint8", 1, entry('\\"\\\\\\n\\u00e9\\ud834\\udd1e', "[1]", 0, 1)),
    "large": version_3("float32", 2**20, entry("a", "[1048576]", 0, 2**20)),
    "huge": version_3("uint8", 2**62, entry("a", f"[{2**62}]", 0, 2**62)),
    "compressed": version_4([block("uint8", 0, 1, 1, ',"fpz":{"codec":1}')]),
    "packed": version_3("float4_e2m1fn_x2", 1),
    "unknown_field": version_3("uint8", 1, more=',"x":{"y":[null]}'),
    "duplicate_field": '{"format":"flashpack_v3","format":"flashpack_v4","index":[]}',
    "duplicate_name": version_3("uint8", 2, entry("a", "[1]", 0, 1), entry("\\u0061", "[1]", 1, 1)),
    "overlap": version_3("uint8", 3, entry("a", "[2]", 0, 2), entry("b", "[2]", 1, 2)),
    "overlapping_blocks": version_4([block("uint8", 0, 2, 2), block("int8", 1, 2, 2)]),
    "beyond_its_block": version_4([block("uint8", 0, 1, 1), block("int8", 1, 2, 2)], entry("a", "[2]", 0, 2, 0)),
    "no_such_block": version_4([block("uint8", 0, 1, 1)], entry("a", "[1]", 0, 1, 1)),
    "overflow": version_3("uint8", 1, entry("a", "[4294967296,4294967296]", 0, 0)),
    "negative": version_3("uint8", 1, entry("a", "[1]", -1, 1)),
    "fraction": '{"format":"flashpack_v3","target_dtype":"uint8","total_elems":1.5,"index":[]}',
    "other_version": '{"format":"flashpack_v2","index":[]}',
    "trailing": version_3("uint8", 0) + "x",
    "unfinished": '{"format":"flashpack_v3","index":[{"name":"a","shape":[1',
}

JOURNALS = {
    "whole": "penstock set 1\nindex 1 2 1 i\nappear 3 -4 1 a\nvanish 5 6 3 b c\nend\n",
    "only_index": "penstock set 1\nindex 1 2 1 i\nend\n",
    "odd_names": "penstock set 1\nindex 1 2 5 \n\nend\nappear 1 2 6 a\nend\n\nend\n",
    "other_version": "penstock set 2\nindex 1 2 1 i\nend\n",
    "parent": "penstock set 1\nindex 1 2 1 i\nvanish 3 4 4 ../a\nend\n",
    "nul": "penstock set 1\nindex 1 2 1 i\nvanish 3 4 3 a\0b\nend\n",
    "long": "penstock set 1\nindex 1 2 18446744073709551615 i\nend\n",
    "unfinished": "penstock set 1\nindex 1 2 1 i\nappear 3 4 1",
}


def emptied(name: str) -> Path:
    folder = HERE / "corpus" / name
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    return folder


def make_flashpack() -> None:
    folder = emptied("fuzz_flashpack")
    # Of the golden files those that are small and differ in kind.
    for name in ("shapes", "names", "align_3", "empty_blocks", "every_type", "name_order"):
        (folder / f"{name}.flashpack").write_bytes((GOLDEN / "flashpack" / f"{name}.flashpack").read_bytes())
    for name, text in FOOTERS.items():
        (folder / f"{name}.footer").write_text(text, newline="")
    (folder / "invalid_utf8.footer").write_bytes(b'{"\xff\xed\xa0\x80":1}')
    (folder / "mark_alone").write_bytes(b"FLASHPK\0")
    (folder / "length_beyond_the_file").write_bytes(b"{}" + (2**63).to_bytes(8, "little") + b"FLASHPK\0")


STORAGE = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x06tQ"
TENSOR = (
    b"ctorch._utils\n_rebuild_tensor_v2\n("
    + STORAGE
    + b"K\x01K\x02K\x01\x86K\x02K\x01\x86\x89ccollections\nOrderedDict\n)RtR"
)
PARAMETER = b"ctorch._utils\n_rebuild_parameter\n(" + TENSOR + b"\x88N\x87R"
MAGIC = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e80024de9032e")

PICKLES = {
    "tensor": TENSOR,
    "parameter": PARAMETER,
    "tied": b"}(X\x01\x00\x00\x00a" + TENSOR + b"q\x01X\x01\x00\x00\x00bh\x01u",
    "ordered": b"ccollections\nOrderedDict\n)R(X\x01\x00\x00\x00a" + TENSOR + b"u}b",
    "kinds": b"(NK\x01M\x01\x01J\xff\xff\xff\xff\x8a\x09" + bytes(9) + b"G" + bytes(8) + b"C\x01a\x88\x89]}\x8f)t",
    "set": b"cbuiltins\nset\n](K\x01K\x02e\x85R",
    "complex": b"cbuiltins\ncomplex\nG" + bytes(8) + b"G" + bytes(8) + b"\x86R",
    "bytes": b"c_codecs\nencode\nX\x01\x00\x00\x00aX\x06\x00\x00\x00latin1\x86R",
    "numpy": b"cnumpy._core.multiarray\nscalar\n(cnumpy\ndtype\n(X\x02\x00\x00\x00f8\x89\x88tR"
    b"(K\x03X\x01\x00\x00\x00<NNNtbC\x08" + bytes(8) + b"tR",
    "gadget": b"cos\nsystem\nX\x04\x00\x00\x00true\x85R",
    "stack_global": b"\x8c\x05posix\x8c\x06system\x93",
    "old_tensor": b"ctorch._utils\n_rebuild_tensor\n(" + STORAGE + b"K\x01K\x02\x85K\x01\x85tR",
    "old_class": b"ctorch\nFloatTensor\n)R(" + STORAGE + b"K\x01K\x02\x85K\x01\x85tb",
    "old_parameter": b"ctorch.nn.parameter\nParameter\n)\x81(" + TENSOR + b"N}\x88\x89tb",
    "attributes": b"ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_tensor\nctorch\nTensor\n("
    + STORAGE
    + b"K\x00)))tt}tR",
    "pairs": b"ccollections\nOrderedDict\n](](U\x01a" + TENSOR + b"ee\x85R",
    "counter": b"ccollections\nCounter\n}U\x01aK\x02s\x85R",
    "array": b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85C\x01btR"
    b"(K\x01K\x02\x85cnumpy\ndtype\n(U\x02i2\x89\x88tR(K\x03U\x01>NNNtb\x89C\x04abcdtb",
    "buffer": b"cnumpy.core.numeric\n_frombuffer\n(C\x04abcdcnumpy\ndtype\n(U\x02u1\x89\x88tRK\x02K\x02\x86U\x01FtR",
    "object": b"cm\nC\n)\x81}U\x01w" + TENSOR + b"sb(U\x01k" + TENSOR + b"u" + TENSOR + b"a",
    "keywords": b"cm\nC\n)}U\x01w" + TENSOR + b"s\x92",
    "old_instance": b"(cm\nC\n" + TENSOR + b"o}b",
    "cycle": b"cm\nC\n)\x81q\x00}U\x01ah\x00sb",
    "sparse": b"ctorch._utils\n_rebuild_sparse_tensor\nctorch.serialization\n_get_layout\n"
    b"X\x10\x00\x00\x00torch.sparse_coo\x85R(" + TENSOR + TENSOR + b"K\x02\x85\x88t\x86R",
    "itself": b"]q\x00h\x00a",
    "bomb": b"](Ne" + b"".join(b"q%c0](" % level + b"h%c" % level * 8 + b"e" for level in range(20)),
    "negative": TENSOR.replace(b"K\x01K\x02", b"J\xff\xff\xff\xffK\x02", 1),
    "length": b"X\xff\xff\xff\x7fabc",
    "memo": b"Nr\xff\xff\xff\x7f",
    "protocol_0": b"I1\n",
    "not_a_storage": b"(X\x06\x00\x00\x00moduleNNNNtQ",
    "deep": b"](" * 1500 + b"N" + b"e" * 1500,
    "unfinished": b"](",
}


def pickled(body: bytes) -> bytes:
    return b"\x80\x02" + body + b"."


def stored(records: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """A zip that torch could have written, but for the padding."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in records.items():
            archive.writestr(zipfile.ZipInfo(f"x/{name}"), data, method)
    return buffer.getvalue()


def make_torch() -> None:
    zips, pickles, legacy = emptied("fuzz_zip"), emptied("fuzz_pickle"), emptied("fuzz_torch_legacy")
    fragments = emptied("fuzz_torch_fragments")
    for name in ("every_dtype", "tree", "no_crc", "script", "tree_protocol_4"):
        path = GOLDEN / "torch" / f"{name}.pt"
        (zips / path.name).write_bytes(path.read_bytes())
    for name in ("every_dtype", "tree", "tree_protocol_3", "tree_protocol_4", "tree_protocol_5"):
        with zipfile.ZipFile(GOLDEN / "torch" / f"{name}.pt") as archive:
            (pickles / f"{name}.pkl").write_bytes(archive.read(f"{name}/data.pkl"))
    for path in (GOLDEN / "torch").glob("*.legacy.pt"):
        (legacy / path.name).write_bytes(path.read_bytes())
    for name, body in PICKLES.items():
        (pickles / f"{name}.pkl").write_bytes(pickled(body))
    keys = pickled(b"](X\x01\x00\x00\x000e") + (6).to_bytes(8, "little") + bytes(24)
    old = TENSOR.replace(b"K\x06tQ", b"K\x06NtQ")
    (legacy / "object").write_bytes(pickled(old) + keys)
    whole = MAGIC + pickled(b"}X\x0d\x00\x00\x00little_endian\x88s") + pickled(old) + keys
    (legacy / "whole").write_bytes(whole)
    for path in legacy.glob("*"):
        (fragments / path.name).write_bytes(path.read_bytes())
    head, stream = whole[:-32], whole[-32:]
    (fragments / "two").write_bytes(head + stream[:16] + head + stream[16:])
    (fragments / "other_keys").write_bytes(
        head + stream[:16] + head.replace(b"\x00\x00\x000", b"\x00\x00\x009") + stream[16:]
    )
    (legacy / "big_endian").write_bytes(MAGIC + pickled(b"}X\x0d\x00\x00\x00little_endian\x89s") + pickled(old) + keys)
    records = {"data.pkl": pickled(TENSOR), "byteorder": b"little", "data/0": bytes(24), "version": b"3\n"}
    (zips / "small.pt").write_bytes(stored(records))
    (zips / "deflated.pt").write_bytes(stored(records, zipfile.ZIP_DEFLATED))
    (zips / "big_endian.pt").write_bytes(stored(records | {"byteorder": b"big"}))
    (zips / "no_storage.pt").write_bytes(stored({"data.pkl": pickled(TENSOR)}))
    (zips / "comment.pt").write_bytes(stored(records)[:-2] + b"\x01\x00c")
    (zips / "twice.pt").write_bytes(stored(records) * 2)
    (zips / "empty.zip").write_bytes(stored({}))


def make_chunks() -> None:
    chunks = emptied("fuzz_chunks")
    for path in (GOLDEN / "chunks").iterdir():
        (chunks / path.name).write_bytes(path.read_bytes())
    whole = (GOLDEN / "chunks" / "dcp.json").read_text()
    # Without its checksum what is changed in it reaches the parser.
    open_end = whole[: whole.rindex(',"crc32"')] + "}"
    halves = '[{"file":0,"offsets":[2,0],"shape":[1,4]},{"file":1,"offsets":[0,0],"shape":[2,4]}]'
    two = open_end.replace('[{"file":0,"offsets":[0,0],"shape":[3,4]}]', halves)
    texts = {
        "open": open_end,
        "two_chunks": two,
        "overlap": two.replace('"shape":[2,4]', '"shape":[3,4]'),
        "hole": two.replace('"shape":[2,4]', '"shape":[1,4]'),
        "outside": two.replace('"offsets":[2,0]', '"offsets":[3,0]'),
        "other_file": two.replace('"file":1', '"file":7'),
        "empty": '{"format":"penstock.dcp","version":1,"files":[],"tensors":{},"objects":{}}',
    }
    for name, text in texts.items():
        (chunks / f"{name}.json").write_text(text, newline="")


def make_writers() -> None:
    """Bytes to choose from, the last of which says which writer."""
    writers = emptied("fuzz_writers")
    for writer in range(8):
        (writers / f"zeros_{writer}").write_bytes(bytes(40) + bytes([writer]))
        rng = random.Random(writer)
        (writers / f"random_{writer}").write_bytes(rng.randbytes(200) + bytes([writer]))


def main() -> None:
    make_writers()
    make_flashpack()
    make_torch()
    make_chunks()
    headers = emptied("fuzz_safetensors")
    indexes = emptied("fuzz_shard_index")
    seals = emptied("fuzz_seal")
    for path in (GOLDEN / "seal").glob("*.json"):
        text = path.read_bytes()
        (seals / path.name).write_bytes(text)
        # Without its last lines, which the target adds: what is changed in it reaches the parser.
        (seals / f"{path.stem}.open").write_bytes(text[: text.rindex(b'  "crc32c"')])
    (seals / "other_version").write_text('{"penstock.seal": 2, "size": 16}')
    for path in (GOLDEN / "safetensors").glob("*.safetensors"):
        (headers / path.name).write_bytes(path.read_bytes())
    for path in (GOLDEN / "safetensors").glob("*.json"):
        (indexes / path.name).write_bytes(path.read_bytes())
    for name, text in HEADERS.items():
        (headers / f"{name}.header").write_text(text, newline="")
    (headers / "invalid_utf8.header").write_bytes(b'{"\xff\xed\xa0\x80":1}')
    (headers / "length_too_large").write_bytes((100_000_001).to_bytes(8, "little") + b"{}")
    (headers / "length_beyond_the_file").write_bytes((100).to_bytes(8, "little") + b"{}")
    (headers / "zip").write_bytes(b"PK\x03\x04\x00\x00\x08\x08\x00\x00")
    for name, text in INDEXES.items():
        (indexes / f"{name}.json").write_text(text, newline="")
    journals = emptied("fuzz_set_change")
    for name, text in JOURNALS.items():
        (journals / name).write_text(text, newline="")
    (indexes / "invalid_utf8.json").write_bytes(b'{"weight_map":{"\xc3":"f"}}')


if __name__ == "__main__":
    main()
