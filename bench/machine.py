"""What the driver asks of the system: the page cache, the drive's counters, and a description for the report."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import time
from pathlib import Path

HALF_STRETCH = 64 << 20
SPARED_MEMORY = 1 << 30  # of what is free, for everybody else
CACHESTAT = 451  # the system call's number, the same on every architecture
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


def can_drop_everything() -> bool:
    return os.access("/proc/sys/vm/drop_caches", os.W_OK)


def files_of(path: Path) -> list[Path]:
    """A checkpoint's files: itself, or all that lie in its directory."""
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in files_of(path))


def drop_page_cache(paths: list[Path], everything: bool = True) -> None:
    """Makes the next read of these checkpoints cold: drops all of the cache where that is wanted, else their pages."""
    os.sync()
    if everything and can_drop_everything():
        Path("/proc/sys/vm/drop_caches").write_text("1")
    for file in (file for path in paths if path.exists() for file in files_of(path)):
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def compact_memory() -> None:
    """Makes room for large pages, where that is allowed: without them mapping is several times slower."""
    control = Path("/proc/sys/vm/compact_memory")
    if os.access(control, os.W_OK):
        control.write_text("1")


def have_memory_at_hand(nbytes: int) -> None:
    """Takes memory and lets go of it, of what is free: a hypervisor that had taken it back gives it again now, and not
    while somebody is measured. For seconds it is what the kernel hands out first.
    """
    free = 1024 * int(system_field("/proc/meminfo", "MemFree").split()[0])
    nbytes = min(nbytes, free - SPARED_MEMORY)
    if nbytes > 0:
        mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE).close()


def warm_page_cache(path: Path) -> None:
    for file in files_of(path):
        _read(file, 0, file.stat().st_size, exactly=False)


def warm_half(path: Path) -> None:
    """Of every file, already cold, every other stretch of 64 MiB (an eighth of smaller files) into the page cache."""
    for file in files_of(path):
        for begin, end in resident_stretches(file.stat().st_size):
            _read(file, begin, end, exactly=True)


def resident_stretches(size: int) -> list[tuple[int, int]]:
    """Which parts of a file of this size `warm_half` reads: every other stretch, of whole pages."""
    length = min(HALF_STRETCH, max(size // 8 // mmap.PAGESIZE, 1) * mmap.PAGESIZE)
    return [(begin, min(begin + length, size)) for begin in range(0, size, 2 * length)]


def _read(path: Path, begin: int, end: int, exactly: bool) -> None:
    """With `exactly` nothing is read ahead, which makes its pages small and slow to map: not for whole files."""
    buffer = bytearray(4 << 20)
    with path.open("rb", buffering=0) as file:
        if exactly:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        file.seek(begin)
        while begin < end:
            count = file.readinto(memoryview(buffer)[: min(len(buffer), end - begin)])
            if not count:
                return
            begin += count


def resident_bytes(path: Path) -> int:
    """How much of a checkpoint the page cache holds.

    Some filesystems answer cachestat with 0: then mincore has the word.
    """
    if not path.exists():
        return 0
    return sum(_resident_bytes_of_file(file) for file in files_of(path))


def _resident_bytes_of_file(path: Path) -> int:
    if path.stat().st_size == 0:
        return 0
    with path.open("rb") as file:
        return _cachestat(file.fileno()) or _mincore(file.fileno(), path.stat().st_size)


def _cachestat(descriptor: int) -> int:
    whole_file = (ctypes.c_uint64 * 2)(0, 0)
    pages = (ctypes.c_uint64 * 5)()
    if _libc.syscall(CACHESTAT, descriptor, whole_file, pages, 0) != 0:
        return 0
    return pages[0] * mmap.PAGESIZE


def _mincore(descriptor: int, size: int) -> int:
    address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address == ctypes.c_void_p(-1).value:
        return 0
    try:
        flags = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
        if _libc.mincore(address, size, flags) != 0:
            return 0
        return sum(byte & 1 for byte in flags.raw[: -(-size // mmap.PAGESIZE)]) * mmap.PAGESIZE
    finally:
        _libc.munmap(address, size)


def device_bytes(path: Path) -> tuple[int, int] | None:
    """Bytes that the drive under a path has read and written since boot; nothing where there is no single drive."""
    device = path.stat().st_dev
    counters = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
    if not counters.exists():
        return None
    fields = counters.read_text().split()
    return 512 * int(fields[2]), 512 * int(fields[6])


def filesystem(path: Path) -> str:
    """Type and device of the mount that a path is on."""
    best = ("", "unknown")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        source, mount_point, kind = line.split()[:3]
        inside = path.resolve().is_relative_to(mount_point)
        if inside and len(mount_point) >= len(best[0]):
            best = (mount_point, f"{kind} on {source}")
    return best[1]


def system_field(file: str, name: str) -> str:
    for line in Path(file).read_text().splitlines():
        if line.startswith(name):
            return line.split(":", 1)[1].strip()
    return "unknown"


def memory_of(process: int) -> dict[str, int]:
    """The Rss... lines of a process's status, in bytes; nothing once it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return {}
    return {line.split(":")[0]: 1024 * int(line.split()[1]) for line in lines if line.startswith("Rss")}


def describe(directory: Path, drop_everything: bool = True) -> dict[str, str | int]:
    return {
        "processor": system_field("/proc/cpuinfo", "model name"),
        "cores": os.cpu_count() or 1,
        "memory_gib": round(int(system_field("/proc/meminfo", "MemTotal").split()[0]) / (1 << 20)),
        "kernel": platform.release(),
        "filesystem": filesystem(directory),
        "python": platform.python_version(),
        "caches_dropped_by": "drop_caches" if drop_everything and can_drop_everything() else "posix_fadvise",
        "date": time.strftime("%Y-%m-%d %H:%M"),
    }
