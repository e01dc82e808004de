"""penstock convert joins what FastPersist's writers leave in pieces."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from cli_command import Run


def whole_file(values: list[float]) -> tuple[bytes, bytes]:
    """A legacy torch file of {"w": values}: its pickles, and what follows them."""

    def text(value: str) -> bytes:
        return b"X" + struct.pack("<I", len(value)) + value.encode()

    def pickle(body: bytes) -> bytes:
        return b"\x80\x02" + body + b"."

    count = b"J" + struct.pack("<i", len(values))
    storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("7") + text("cpu") + count + b"NtQ"
    hooks = b"ccollections\nOrderedDict\n)R"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00" + count + b"\x85K\x01\x85\x89" + hooks + b"tR"
    magic = pickle(b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19")
    machine = pickle(b"}" + text("little_endian") + b"\x88s")
    head = (
        magic
        + pickle(b"M\xe9\x03")
        + machine
        + pickle(b"}" + text("w") + tensor + b"s")
        + pickle(b"]" + text("7") + b"a")
    )
    return head, struct.pack("<q", len(values)) + struct.pack(f"<{len(values)}f", *values)


def write_fragments(path: Path, count: int) -> list[Path]:
    head, stream = whole_file([float(i) for i in range(1000)])
    length, longer = divmod(len(stream), count)
    paths = []
    for rank in range(count):
        begin = rank * length + min(rank, longer)
        paths.append(path.with_name(f"{path.name}-{rank}.{count}"))
        paths[-1].write_bytes(head + stream[begin : begin + length + (rank < longer)])
    return paths


def test_fragments_become_the_file_that_they_are_parts_of(run: Run, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    paths = write_fragments(tmp_path / "in" / "m.pt", 3)
    expected = b"".join(whole_file([float(i) for i in range(1000)]))
    for number, sources in enumerate([list(reversed(paths)), [tmp_path / "in"], [tmp_path / "in" / "m.pt"]]):
        result = run("convert", *sources, f"out{number}.pt", "--json")
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout)["tensors"] == 1
        assert (tmp_path / f"out{number}.pt").read_bytes() == expected
    assert run("verify", "out0.pt").returncode == 0


def test_fragments_become_other_formats(run: Run, tmp_path: Path) -> None:
    paths = write_fragments(tmp_path / "m.pt", 2)
    assert run("convert", *paths, "out.safetensors", "--dtype", "bf16").returncode == 0
    listed = json.loads(run("ls", "out.safetensors", "--json").stdout)
    assert [(tensor["name"], tensor["dtype"]) for tensor in listed["tensors"]] == [("w", "BF16")]


def test_tensors_of_fragments_are_selected_and_renamed(run: Run, tmp_path: Path) -> None:
    paths = write_fragments(tmp_path / "m.pt", 2)
    arguments = ["--select", "w", "--add-prefix", "model."]
    assert run("convert", *paths, "out.safetensors", *arguments).returncode == 0
    listed = json.loads(run("ls", "out.safetensors", "--json").stdout)
    assert [tensor["name"] for tensor in listed["tensors"]] == ["model.w"]


def test_a_missing_fragment_is_named(fails: Run, tmp_path: Path) -> None:
    paths = write_fragments(tmp_path / "m.pt", 3)
    result = fails("convert", "m.pt-0.3", "m.pt-2.3", "out.pt")
    assert result.stderr == ('penstock: m.pt-1.3: missing; "m.pt" was written in 3 fragments, and 2 of them are here\n')
    paths[1].unlink()
    assert "m.pt-1.3: missing" in fails("convert", "m.pt", "out.pt").stderr
    assert not (tmp_path / "out.pt").exists()


def test_fragments_of_another_save_are_wrong_usage(misused: Run, tmp_path: Path) -> None:
    write_fragments(tmp_path / "m.pt", 2)
    write_fragments(tmp_path / "m.pt", 3)
    result = misused("convert", "m.pt-0.2", "m.pt-1.3", "out.pt")
    assert result.stderr == (
        "penstock: m.pt-1.3: one of 3 fragments, and m.pt-0.2 is one of 2: they are not of one save\n"
    )


def test_a_fragment_alone_is_refused_by_what_it_is(fails: Run, tmp_path: Path) -> None:
    write_fragments(tmp_path / "m.pt", 2)
    for command in ("ls", "verify"):
        assert fails(command, "m.pt-0.2").stderr == (
            'penstock: m.pt-0.2: fragment 0 of 2 of "m.pt", which can\'t be read alone; convert joins them\n'
        )
