"""The checkpoint engine that DeepSpeed is given: tags and `latest` are whole at every moment. Without DeepSpeed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any, NamedTuple

import helpers
import pytest
import torch
from penstock.errors import ArgumentError
from penstock.fastpersist._deepspeed_engine import DeepSpeedCheckpointEngine

RANK = Path(__file__).with_name("tags_rank.py")
FILES = ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt")


class Info(NamedTuple):
    """What DeepSpeed says of a checkpoint."""

    tag: str
    save_dir: str
    save_latest: bool


def make_engine(**writer: Any) -> DeepSpeedCheckpointEngine:
    return DeepSpeedCheckpointEngine({"checkpoint": {"writer": writer}}, True, timeout=60)


def save(engine: DeepSpeedCheckpointEngine, directory: Path, tag: str, step: int, latest: bool = True) -> Info:
    """As DeepSpeed does it, up to the commit."""
    info = Info(tag, str(directory), False)
    with engine.saving(latest):
        engine.create(info)
        engine.makedirs(directory / tag, exist_ok=True)
        for name in FILES:
            engine.save({"step": step, "x": torch.full((1000,), step)}, directory / tag / name)
        if not engine.is_decoupled():
            engine.commit(info)
    return info


def steps_of(directory: Path) -> list[int]:
    return [torch.load(directory / name)["step"] for name in FILES]


def visible(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))


def hidden(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name.startswith("."))


@pytest.mark.parametrize("kind", ["fast", "python"])
def test_a_tag_appears_whole_and_then_latest_names_it(tmp_path: Path, kind: str) -> None:
    engine = make_engine(type=kind)
    save(engine, tmp_path, "a", 1)
    assert (tmp_path / "latest").read_bytes() == b"a"
    assert steps_of(tmp_path / "a") == [1, 1]
    save(engine, tmp_path, "b", 2, latest=False)
    assert (tmp_path / "latest").read_bytes() == b"a"
    assert steps_of(tmp_path / "b") == [2, 2]
    assert [os.path.relpath(each["path"], tmp_path) for each in engine.stats] == [f"b/{name}" for name in FILES]
    assert hidden(tmp_path) == []


def test_a_decoupled_checkpoint_is_named_by_its_commit(tmp_path: Path) -> None:
    engine = make_engine(decoupled=True)
    info = save(engine, tmp_path, "a", 1)
    assert visible(tmp_path) == []
    assert engine.get_commit_info() == info
    engine.commit(info)
    assert engine.get_commit_info() is None
    assert visible(tmp_path) == ["a", "latest"]
    save(engine, tmp_path, "b", 2)
    save(engine, tmp_path, "c", 3)  # nobody has committed b
    assert (tmp_path / "latest").read_text() == "b"
    engine.cleanup()
    assert (tmp_path / "latest").read_text() == "c"
    assert steps_of(tmp_path / "c") == [3, 3]


def test_a_tag_that_is_saved_again_keeps_what_others_put_there(tmp_path: Path) -> None:
    engine = make_engine()
    save(engine, tmp_path, "a", 1)
    (tmp_path / "a" / "tokenizer").mkdir()
    (tmp_path / "a" / "tokenizer" / "words.json").write_text("{}")
    (tmp_path / "a" / "shared").symlink_to(tmp_path / "a" / "tokenizer")
    (tmp_path / "a" / "zero_pp_rank_7_mp_rank_00_optim_states.pt").write_text("of more ranks than there are now")
    save(engine, tmp_path, "a", 2)
    assert steps_of(tmp_path / "a") == [2, 2]
    assert visible(tmp_path / "a") == sorted([*FILES, "shared", "tokenizer"])
    assert (tmp_path / "a" / "shared").is_symlink()
    assert (tmp_path / "a" / "tokenizer" / "words.json").read_text() == "{}"
    assert hidden(tmp_path) == []


def test_what_others_put_there_is_copied_where_there_are_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **named: Any) -> None:
        raise PermissionError("no hard links here")

    engine = make_engine()
    save(engine, tmp_path, "a", 1)
    (tmp_path / "a" / "words.json").write_text("{}")
    monkeypatch.setattr(os, "link", refuse)
    save(engine, tmp_path, "a", 2)
    assert (tmp_path / "a" / "words.json").read_text() == "{}"
    assert steps_of(tmp_path / "a") == [2, 2]


def test_a_file_beside_the_tags_is_saved_where_it_is_asked_for(tmp_path: Path) -> None:
    """As save_16bit_model does."""
    engine = make_engine(decoupled=True)
    info = Info("global_step3", str(tmp_path), False)
    engine.create(info)
    engine.makedirs(tmp_path, exist_ok=True)
    engine.save({"x": torch.ones(3)}, tmp_path / "pytorch_model.bin")
    engine.commit(info)
    assert visible(tmp_path) == ["pytorch_model.bin"]
    assert torch.equal(torch.load(tmp_path / "pytorch_model.bin")["x"], torch.ones(3))
    assert hidden(tmp_path) == []


def test_what_writes_nothing_names_nothing(tmp_path: Path) -> None:
    save(make_engine(type="mock"), tmp_path, "a", 1)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_fails_leaves_tag_and_latest_alone(tmp_path: Path) -> None:
    engine = make_engine()
    save(engine, tmp_path, "a", 1)
    info = Info("a", str(tmp_path), False)
    with pytest.raises(Exception, match="lambda"), engine.saving(True):
        engine.create(info)
        engine.save({"step": 2}, tmp_path / "a" / FILES[0])
        engine.save({"f": lambda: 0}, tmp_path / "a" / FILES[1])
        engine.commit(info)
    assert steps_of(tmp_path / "a") == [1, 1]
    assert hidden(tmp_path) == []
    with pytest.raises(KeyError), engine.saving(True):
        engine.create(Info("b", str(tmp_path), False))
        raise KeyError("between two files")
    assert engine.get_commit_info() is None
    engine.finish()  # there is nothing to commit
    assert visible(tmp_path) == ["a", "latest"]
    assert hidden(tmp_path) == []
    save(engine, tmp_path, "b", 3)
    assert (tmp_path / "latest").read_text() == "b"


@pytest.mark.parametrize("tag", ["", ".", "../outside"])
def test_a_tag_that_is_no_directory_of_its_own_is_refused(tmp_path: Path, tag: str) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    with pytest.raises(ArgumentError, match="a tag must name a directory within"):
        save(make_engine(), directory, tag, 1)
    assert visible(tmp_path) == ["run"]
    assert hidden(tmp_path) == []


SAVE_FOR_EVER = """
    import sys, itertools
    from pathlib import Path
    sys.path[:0] = [sys.argv[2]]
    from test_fastpersist_tags import make_engine, save
    engine = make_engine(type="fast", decoupled=sys.argv[3] == "decoupled")
    for step in itertools.count(1):
        info = save(engine, Path(sys.argv[1]), f"tag{step % 2}", step)
        engine.finish()
        print(step, flush=True)
"""


@pytest.mark.parametrize("kind", ["decoupled", "direct"])
def test_after_a_kill_at_any_moment_latest_names_a_whole_tag(tmp_path: Path, kind: str) -> None:
    generator = random.Random(3)
    done = 0
    for _ in range(5):
        command = [
            sys.executable,
            "-c",
            textwrap.dedent(SAVE_FOR_EVER),
            str(tmp_path),
            str(Path(__file__).parent),
            kind,
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(3):
                done = int(process.stdout.readline())
            time.sleep(generator.random() * 0.02)
            process.kill()
            done = max([done, *map(int, process.stdout.read().split())])
        tag = (tmp_path / "latest").read_text()
        first, second = steps_of(tmp_path / tag)
        assert first == second
        assert first in (done, done + 1)
        for name in visible(tmp_path):
            if name != "latest":
                first, second = steps_of(tmp_path / name)
                assert first == second
    save(make_engine(), tmp_path, "last", 1)
    assert hidden(tmp_path) == []


def run_ranks(directory: Path, scene: str) -> list[str]:
    """What each of two ranks tells of a scene in tags_rank.py."""
    environment = {**os.environ, **helpers.rendezvous()}
    with contextlib.ExitStack() as stack:
        ranks = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, str(RANK), str(rank), str(directory), scene],
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
            for rank in range(2)
        ]
        said = [process.communicate(timeout=120)[0] for process in ranks]
    assert [process.returncode for process in ranks] in ([0, 0], [0, -signal.SIGKILL]), said
    return said


def told(said: str) -> Any:
    return json.loads(said.splitlines()[-1])


def test_the_tag_waits_for_the_files_of_every_rank(tmp_path: Path) -> None:
    assert [told(each) for each in run_ranks(tmp_path, "slow")] == [["rank_0", "rank_1"]] * 2
    assert (tmp_path / "latest").read_text() == "a"


def test_what_fails_on_one_rank_is_raised_on_every_rank_and_names_nothing(tmp_path: Path) -> None:
    for message in [told(each) for each in run_ranks(tmp_path, "failing")]:
        assert "rank_1_states.pt" in message
        assert "Is a directory" in message or "is a directory" in message
    assert visible(tmp_path) == ["a", "latest"]
    assert (tmp_path / "latest").read_text() == "a"
    assert hidden(tmp_path) == []


def test_a_rank_that_dies_while_it_saves_names_nothing(tmp_path: Path) -> None:
    said = run_ranks(tmp_path, "dying")
    assert "a rank is gone" in told(said[0])
    assert (tmp_path / "latest").read_text() == "a"
    assert visible(tmp_path) == ["a", "latest"]


def test_tags_that_differ_are_refused_on_every_rank(tmp_path: Path) -> None:
    for each in run_ranks(tmp_path, "tags"):
        assert "rank 1 saves another tag than rank 0" in told(each)
    assert visible(tmp_path) == []


def test_directories_that_differ_are_refused_on_every_rank(tmp_path: Path) -> None:
    for each in run_ranks(tmp_path, "directories"):
        assert "ranks must save to the same directory" in told(each)


def test_what_nobody_committed_is_committed_at_exit(tmp_path: Path) -> None:
    run_ranks(tmp_path, "exit")
    assert (tmp_path / "latest").read_text() == "a"
    assert visible(tmp_path / "a") == ["rank_0_states.pt", "rank_1_states.pt"]
    assert hidden(tmp_path) == []
