"""Programs that use NVIDIA's libcufile without its kernel driver, in a mount namespace of their own.

The library asks udev about the block device that a file lies on, and refuses the file where udev knows nothing of it
(in a container, say). It waits for ever where there is no /proc/modules. Here it finds both.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

COMMAND = ["unshare", "--map-root-user", "--mount"]
SECONDS = 60  # what waits for ever must not hold up the others


def require_namespaces() -> None:
    """Skips the test where this user may make none."""
    if shutil.which(COMMAND[0]) is None:
        pytest.skip("there is no unshare command")
    probe = [*COMMAND, "mount", "-t", "tmpfs", "none", "/run"]
    done = subprocess.run(probe, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"mount namespaces are not allowed here: {done.stderr.strip()}")


def filesystem_of(folder: Path) -> tuple[str, str]:
    """("259:1", "ext4"): the block device of a folder and what is on it; skips the test where there is none."""
    number = folder.stat().st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, filesystem = line.partition(" - ")
        if os.major(number) != 0 and mount.split()[2] == device:
            return device, filesystem.split()[0]
    pytest.skip(f"{folder} lies on no block device, and libcufile takes no files from there")


def run_with_udev(
    command: list[str], folder: Path, preload: Path, libraries: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs a command in a namespace whose udev knows the device of `folder`, which is its working directory too."""
    device, filesystem = filesystem_of(folder)
    known = f"E:ID_FS_USAGE=filesystem\nE:ID_FS_TYPE={filesystem}\n"
    entry = f"/run/udev/data/b{device}"
    setup = f"mount -t tmpfs none /run && mkdir -p /run/udev/data && printf %s {shlex.quote(known)} >{entry}"
    environment = {
        "LD_PRELOAD": str(preload),
        "LD_LIBRARY_PATH": str(libraries),
        "CUFILE_FORCE_COMPAT_MODE": "true",
        **variables,
    }
    assignments = [f"{name}={value}" for name, value in environment.items()]
    script = f"{setup} && exec {shlex.join(['env', *assignments, *command])}"
    arguments = [*COMMAND, "sh", "-c", script]
    return subprocess.run(arguments, cwd=folder, check=False, capture_output=True, text=True, timeout=SECONDS)
