"""Makes the seed corpora: the golden files, and small files that are broken in one way each.

python fuzz/make_corpus.py
"""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "tests" / "data" / "safetensors"


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


def main() -> None:
    headers = HERE / "corpus" / "fuzz_safetensors"
    indexes = HERE / "corpus" / "fuzz_shard_index"
    for folder in (headers, indexes):
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
    for path in GOLDEN.glob("*.safetensors"):
        (headers / path.name).write_bytes(path.read_bytes())
    for path in GOLDEN.glob("*.json"):
        (indexes / path.name).write_bytes(path.read_bytes())
    for name, text in HEADERS.items():
        (headers / f"{name}.header").write_text(text, newline="")
    (headers / "invalid_utf8.header").write_bytes(b'{"\xff\xed\xa0\x80":1}')
    (headers / "length_too_large").write_bytes((100_000_001).to_bytes(8, "little") + b"{}")
    (headers / "length_beyond_the_file").write_bytes((100).to_bytes(8, "little") + b"{}")
    (headers / "zip").write_bytes(b"PK\x03\x04\x00\x00\x08\x08\x00\x00")
    for name, text in INDEXES.items():
        (indexes / f"{name}.json").write_text(text, newline="")
    (indexes / "invalid_utf8.json").write_bytes(b'{"weight_map":{"\xc3":"f"}}')


if __name__ == "__main__":
    main()
