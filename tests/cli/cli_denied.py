"""Functions to run in a child before the command (preexec_fn), which take something away from it."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
from collections.abc import Callable

import pytest

Denial = Callable[[], None]

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _PR_SET_THP_DISABLE = 38, 22, 41
_SECCOMP_MODE_FILTER = 2
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_LOAD, _IF_EQUAL, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06  # instructions of the kernel's packet filter
_NUMBER, _THIRD_ARGUMENT = 0, 32  # where the filter finds them
_IO_URING_SETUP = 425  # on every architecture
_OPENAT = {"x86_64": 257, "aarch64": 56}


def _filter(instructions: list[tuple[int, int, int, int]]) -> Denial:
    """A filter of system calls: (instruction, jump if true, jump if false, operand)."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *line) for line in instructions))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(instructions), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)

    def install(_keep: object = code) -> None:
        zero = ctypes.c_ulong(0)
        for option, first, second in (
            (_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero),
            (_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.c_ulong(ctypes.addressof(program))),
        ):
            if libc.prctl(option, first, second, zero, zero) != 0:
                raise OSError(ctypes.get_errno(), "no seccomp filter can be installed")

    return install


def without_uring() -> Denial:
    """As a container's seccomp profile does it."""
    return _filter(
        [
            (_LOAD, 0, 0, _NUMBER),
            (_IF_EQUAL, 0, 1, _IO_URING_SETUP),
            (_RETURN, 0, 0, _REFUSE | errno.EPERM),
            (_RETURN, 0, 0, _ALLOW),
        ]
    )


def without_direct_io() -> Denial:
    """open with O_DIRECT says EINVAL, as on filesystems that have none."""
    if platform.machine() not in _OPENAT:
        pytest.skip(f"the number of openat on {platform.machine()} is not known here")
    return _filter(
        [
            (_LOAD, 0, 0, _NUMBER),
            (_IF_EQUAL, 0, 3, _OPENAT[platform.machine()]),
            (_LOAD, 0, 0, _THIRD_ARGUMENT),
            (_IF_ANY_BIT, 0, 1, os.O_DIRECT),
            (_RETURN, 0, 0, _REFUSE | errno.EINVAL),
            (_RETURN, 0, 0, _ALLOW),
        ]
    )


def without_huge_pages() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_THP_DISABLE, *map(ctypes.c_ulong, (1, 0, 0, 0))) != 0:
        raise OSError(ctypes.get_errno(), "huge pages can't be turned off")


def with_limit(kind: int, limit: int) -> Denial:
    """with_limit(resource.RLIMIT_NOFILE, 16)."""
    return lambda: resource.setrlimit(kind, (limit, limit))
