"""Makes the kernel refuse some system calls to this process, as a filesystem does that does not have them."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

_NUMBERS = {"x86_64": (257, 316), "aarch64": (56, 276)}.get(platform.machine())  # openat, renameat2
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2
_LOAD, _EQUALS, _HAS_BITS, _RETURN = 0x20, 0x15, 0x45, 0x06
_NUMBER, _THIRD_ARGUMENT = 0, 32  # where they lie in what the filter sees
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000


def refuse_tmpfile() -> None:
    """Files without names: EOPNOTSUPP."""
    flag = os.O_TMPFILE & ~os.O_DIRECTORY
    _install(
        (_LOAD, 0, 0, _NUMBER),
        (_EQUALS, 0, 3, _number(0)),
        (_LOAD, 0, 0, _THIRD_ARGUMENT),
        (_HAS_BITS, 0, 1, flag),
        (_RETURN, 0, 0, _ERROR | errno.EOPNOTSUPP),
        (_RETURN, 0, 0, _ALLOW),
    )


def refuse_renameat2() -> None:
    """Renames that look or swap in one step: EINVAL."""
    _install(
        (_LOAD, 0, 0, _NUMBER),
        (_EQUALS, 0, 1, _number(1)),
        (_RETURN, 0, 0, _ERROR | errno.EINVAL),
        (_RETURN, 0, 0, _ALLOW),
    )


def _number(which: int) -> int:
    if _NUMBERS is None:
        raise NotImplementedError("the numbers of system calls are known for x86-64 and arm64 only")
    return _NUMBERS[which]


def _install(*program: tuple[int, int, int, int]) -> None:
    code = b"".join(struct.pack("<HBBI", *each) for each in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    described = struct.pack("<H6xQ", len(program), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if libc.prctl(_SET_SECCOMP, _FILTER, ctypes.c_char_p(described), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")
