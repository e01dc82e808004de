"""The short form of proof/kills.py: hundreds of kills of saves of every kind. And savers with bugs, which it finds.

It forks, and what has threads must not: it runs in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROOF = Path(__file__).resolve().parents[2] / "proof"
sys.path.insert(0, str(PROOF))

import tracer  # noqa: E402

# A saver for proof/kills.py in place of penstock's, over an old checkpoint. Each breaks the protocol in one way.
BUGS = {
    "writes in place": """
        path.write_bytes(new)
    """,
    "writes in place, piece by piece": """
        with path.open("r+b", buffering=0) as file:
            for at in range(0, len(new), 65536):
                file.write(new[at : at + 65536])
            file.truncate()
    """,
    "renames before the data is whole": """
        with temporary.open("wb", buffering=0) as file:
            os.rename(temporary, path)
            file.write(new)
    """,
    "removes the old one first": """
        temporary.write_bytes(new)
        path.unlink()
        os.rename(temporary, path)
    """,
    "leaves a file that nobody removes": """
        stray = path.with_name("stray")
        stray.write_bytes(new)
        os.rename(stray, path)
    """,
    "names its temporary as penstock does, and locks it for ever": """
        import fcntl, subprocess
        temporary = path.with_name(".m.safetensors.0123456789abcdef.tmp")
        with temporary.open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            keeper = subprocess.Popen(["sleep", "30"], pass_fds=[file.fileno()])
            file.write(new)
        os.rename(temporary, path)
        keeper.kill()
    """,
}

SCRIPT = """
import os
import sys
import tempfile
import textwrap
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import kills
import penstock
import saves
import tracer

target = "m.safetensors"
code = compile(textwrap.dedent(sys.argv[2]), "bug", "exec")

def save(folder):
    new = bytes((folder.parent / "new").read_bytes())
    path = folder / target
    exec(code, {"os": os, "path": path, "new": new, "temporary": path.with_name("temporary")})

def before(folder):
    penstock.save(saves.content(saves.OLD), folder / target)
    penstock.save(saves.content(saves.NEW), folder.parent / "new", format="safetensors")

kind = saves.file_kind("bug", "bug", target, before, save)
plan = kills.Plan(tracer.CALLS, 1, 0)
with tempfile.TemporaryDirectory() as folder:
    tally = kills.run(lambda: [kind], Path(folder), plan)["bug"]
print(tally.kills, tally.lost, tally.left_after, tally.is_clean)
"""


def require_traces() -> None:
    reason = tracer.why_not()
    if reason is not None:
        pytest.skip(f"processes can't be traced here: {reason}")


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=600, check=False)


def test_kills_of_every_kind_leave_the_old_or_the_new_and_nothing_else() -> None:
    require_traces()
    done = run([str(PROOF / "kills.py"), "--short"])
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    kills = int(done.stdout.splitlines()[-1].split()[0])
    assert kills > 400


@pytest.mark.parametrize("bug", BUGS)
def test_a_saver_with_a_bug_is_found(bug: str) -> None:
    require_traces()
    done = run(["-c", SCRIPT, str(PROOF), BUGS[bug]])
    assert done.returncode == 0, done.stderr
    kills, lost, left_after, is_clean = done.stdout.splitlines()[-1].split()
    assert is_clean == "False", done.stdout
    assert int(kills) > 0
    loses = "leaves" not in bug and "locks" not in bug
    assert (int(lost) > 0) == loses, done.stdout
    assert loses or int(left_after) > 0, done.stdout


def test_calls_of_all_threads_are_numbered_and_killed_at(tmp_path: Path) -> None:
    require_traces()
    script = """
import os, sys, threading
sys.path.insert(0, sys.argv[1])
import tracer

def work(thread, folder):
    for number in range(3):
        os.mkdir(f"{folder}/{thread}-{number}")

def act(folder=sys.argv[2]):
    threads = [threading.Thread(target=work, args=(thread, folder)) for thread in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]

whole = tracer.Child(act).trace(None, tracer.CALLS)
print(whole.code, whole.calls.count("mkdir"), len(os.listdir(sys.argv[2])))
killed = tracer.Child(lambda: act(sys.argv[2] + "/0-0")).trace(4, tracer.CALLS)
print(killed.killed, killed.calls.count("mkdir"))
"""
    done = run(["-c", script, str(PROOF), str(tmp_path)])
    assert done.stdout.splitlines() == ["0 9 9", "True 4"], done.stderr
