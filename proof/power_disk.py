"""Filesystems in image files: how they are made and mounted, and how one is shut down as if its power were cut.

Everything is mounted in a mount namespace of this process, so that nothing stays mounted when it dies.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CLONE_NEWNS, MS_REC, MS_PRIVATE, PR_SET_PDEATHSIG = 0x20000, 0x4000, 0x40000, 1
FS_IOC_SHUTDOWN, WITH_JOURNAL, WITHOUT_JOURNAL = 0x8004587D, 1, 2
BTRFS_FORGET_DEVICES = 0x50009405

libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Filesystem:
    name: str
    megabytes: int  # the least that its mkfs likes; nearly all of it stays a hole
    make: tuple[str, ...]
    options: str  # of the mount, beside the defaults
    shuts_down: bool


# Blocks as on a drive of usual size, and no thread that goes on making it.
MKFS_EXT4 = ("mkfs.ext4", "-q", "-F", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0")

FILESYSTEMS = {
    filesystem.name: filesystem
    for filesystem in (
        Filesystem("ext4", 128, MKFS_EXT4, "", True),
        Filesystem("xfs", 300, ("mkfs.xfs", "-q", "-f"), "", True),
        # The log knows writes and syncs, and no discards.
        Filesystem("btrfs", 256, ("mkfs.btrfs", "-q", "-f"), "nodiscard", False),
    )
}


class UnusableError(Exception):
    """Why power can't be cut here."""


def call(function: str, *arguments: object) -> None:
    if getattr(libc, function)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")


def run(*command: str | Path) -> None:
    """Its complaint is the error."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ, "PATH": PATH})
    if done.returncode != 0:
        raise OSError(f"{command[0]}: {done.stderr.strip() or done.returncode}")


PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"


def end_with_parent() -> None:
    call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL)


def use_own_mounts() -> None:
    """Raises UnusableError where this process may not mount, or there is nothing to mount with."""
    if os.geteuid() != 0:
        raise UnusableError("only root can mount filesystems")
    for device in ("/dev/loop-control", "/dev/fuse"):
        if not os.access(device, os.R_OK | os.W_OK):
            raise UnusableError(f"there is no {device}")
    try:
        call("unshare", CLONE_NEWNS)
        call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    except OSError as error:
        raise UnusableError(f"no mount namespace can be made: {error}") from None


def why_unusable(filesystem: Filesystem) -> str | None:
    if shutil.which(filesystem.make[0], path=PATH) is None:
        return f"there is no {filesystem.make[0]}"
    if filesystem.name not in known_to_kernel() and shutil.which("modprobe", path=PATH):
        subprocess.run(["modprobe", filesystem.name], check=False, capture_output=True, env={"PATH": PATH})
    return None if filesystem.name in known_to_kernel() else f"this kernel has no {filesystem.name}"


def known_to_kernel() -> list[str]:
    return Path("/proc/filesystems").read_text().split()


def make_image(filesystem: Filesystem, image: Path) -> None:
    with image.open("wb") as file:
        file.truncate(filesystem.megabytes << 20)
    run(*filesystem.make, image)


def copy_image(image: Path, target: Path) -> None:
    """Holes stay holes, and so become stretches of zeros. A new file: a loop device may still have the old one."""
    target.unlink(missing_ok=True)
    run("cp", "--sparse=always", image, target)


@contextmanager
def mounted(filesystem: Filesystem, image: Path, folder: Path) -> Iterator[Path]:
    options = ",".join(filter(None, ("loop", filesystem.options)))
    run("mount", "-t", filesystem.name, "-o", options, image, folder)
    try:
        yield folder
    finally:
        unmount(folder)
        if filesystem.name == "btrfs":
            forget_devices()


def unmount(folder: Path) -> None:
    """Waits for who still has it: a loop device is given back late where another process looks at all of them."""
    end = time.monotonic() + 90
    while still_used(folder):
        if time.monotonic() > end:
            raise OSError(f"umount: {folder} stays busy")
        time.sleep(0.02)


def still_used(folder: Path) -> bool:
    """Unmounts it, or says that somebody uses it."""
    try:
        run("umount", folder)
    except OSError as error:
        if "busy" not in str(error):
            raise
        return True
    return False


def options_of(folder: Path) -> str:
    """What a mounted filesystem was mounted with, defaults that it tells included."""
    lines = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return next(fields[3] for fields in lines if fields[1] == str(folder))


def forget_devices() -> None:
    """btrfs takes an image for a stale copy of one with the same name that it has seen on another loop device."""
    control = os.open("/dev/btrfs-control", os.O_RDWR)
    try:
        fcntl.ioctl(control, BTRFS_FORGET_DEVICES, bytearray(4096))
    finally:
        os.close(control)


def shut_down(descriptor: int, with_journal: bool) -> None:
    """The filesystem of this file fails whatever it is asked from now on, and loses what it has not yet written.

    with_journal: its journal is written first, as if it had just come to that by itself; data is not.
    """
    fcntl.ioctl(descriptor, FS_IOC_SHUTDOWN, struct.pack("=I", WITH_JOURNAL if with_journal else WITHOUT_JOURNAL))
