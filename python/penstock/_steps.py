"""Directories that appear whole: files are written into a hidden one, and one rename gives it its name.

Protocol. ".NAME.saving-<16 hex digits>" is made beside the target, and its maker holds a shared flock on it: files ->
fsync of every file and directory -> rename -> fsync of the parent. A hidden directory that can be locked exclusively
belongs to nobody any more: its maker was killed, and `remove_dead` removes it. Where a filesystem has no such locks (a
directory can't be locked exclusively over NFS) none is ever taken for dead.

An existing target is swapped with the new directory in one step (RENAME_EXCHANGE), so that at every moment one of them
has the name. Where the filesystem can't do that, it is renamed to ".NAME.replaced-<...>" first: whoever is killed
between the two renames leaves no target, and `remove_dead` gives the old one its name again.

What is removed gets a hidden name first (".NAME.removing-<...>"), so that nobody ever sees a part of it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ._options import target_text
from .errors import ArgumentError, DirectoryError, Error, IoError, NoSpaceError, NotFoundError, PermissionDeniedError

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from ._options import Path as AnyPath

_HIDDEN = re.compile(r"\.(?P<name>.+)\.(?P<why>saving|replaced|removing)-[0-9a-f]{16}", re.DOTALL)
_MOST_OF_A_NAME = 200  # bytes
_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_RENAME_EXCHANGE = 2
_CANT = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)


class StagedDirectory:
    """A hidden directory beside `target`, which becomes the target with `commit`.

        with StagedDirectory("run/step-00000042") as staged:
            penstock.save(model, staged.path / "model.safetensors", durable=False)
            staged.commit()

    Until then nobody sees the target, or sees the old one. A `with` that ends without a commit removes what was
    written. The maker holds a lock while its process lives; others, such as other ranks, only write into `path`. A
    child of `fork()` does not inherit it.

    durable: whether `commit` waits until the drive has it all. Without, a power cut may lose what was committed.
    """

    def __init__(self, target: AnyPath, *, durable: bool = True) -> None:
        self.target = Path(os.path.join(os.getcwd(), target_text(target)))
        if self.target.name in ("", ".."):
            raise ArgumentError(f"{self.target}: can't be the name of a new directory")
        self._durable = durable
        self._fd: int | None
        with naming(self.target):
            self.path, self._fd = _make_hidden(self.target)
        _held.add(self)

    def commit(self, *, replace: bool = False, sync_files: bool = True) -> None:
        """Gives the directory its name. Where that fails the target is what it was, and this can be tried again.

        Only a sync of the parent can fail later than that: then the name is there, and a power cut may take it back.

        replace: whether it may take the place of an existing target, which is removed. Else that is an error.
        sync_files: False where every file was made durable when it was written; directories are always synced.
        """
        if self._fd is None:
            raise ArgumentError(f"{self.target}: the directory was committed or abandoned before")
        with naming(self.target):
            if self._durable:
                _sync_tree(self.path, sync_files)
            old = self._rename(replace)
            try:
                if self._durable:
                    self._sync_name(self._fd)
            finally:
                self._release()
                if old is not None:
                    shutil.rmtree(old, ignore_errors=True)

    def abandon(self) -> None:
        """Removes what was written, unless it was committed."""
        if self._fd is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon()

    def _sync_name(self, fd: int) -> None:
        try:
            os.fsync(fd)  # some filesystems keep its name with itself
            _sync(self.target.parent)
        except OSError as problem:
            message = (
                f"is in place under its name, but may not survive a power cut: its sync failed: {problem.strerror}"
            )
            raise OSError(problem.errno, message) from problem

    def _rename(self, replace: bool) -> Path | None:
        """Makes it the target. Returns where the old one is now."""
        if _rename_to_free(self.path, self.target):
            return None
        if not replace:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(self.target))
        if not stat.S_ISDIR(os.lstat(self.target).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(self.target))
        os.chmod(self.path, stat.S_IMODE(os.stat(self.target).st_mode))
        if _rename(self.path, self.target, _RENAME_EXCHANGE):
            return self.path
        return self._rename_in_two_steps()

    def _rename_in_two_steps(self) -> Path:
        with _locked(self.target):  # so that nobody gives it its name again meanwhile
            old = _hidden_name(self.target, "replaced")
            os.rename(self.target, old)
            try:
                os.rename(self.path, self.target)
            except BaseException:
                os.rename(old, self.target)
                raise
        return old

    def _release(self) -> None:
        _held.discard(self)
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def remove_dead(parent: AnyPath, *, of: str | None = None) -> list[str]:
    """Removes the hidden directories that dead processes left here, and returns the names of those that are gone.

    of: only those for targets of this name: others may be saved at the same time by machines that share no locks.

    An old target that one of them had put aside and not replaced has its name again. What can't be removed is left.
    """
    gone = []
    with suppress(FileNotFoundError), os.scandir(parent) as entries:
        found = [match for entry in entries if (match := _HIDDEN.fullmatch(entry.name))]
        targets = None if of is None else {of, _cut(of)}
        names = [match[0] for match in found if targets is None or match["name"] in targets]
        gone = [name for name in sorted(names) if _remove_if_dead(Path(parent) / name)]
    return gone


def remove_directory(path: AnyPath) -> None:
    """Removes a directory that is in its place: first its name goes, then what is in it."""
    target = Path(os.path.abspath(target_text(path)))
    with naming(target):
        hidden = _hidden_name(target, "removing")
        os.rename(target, hidden)
        shutil.rmtree(hidden, ignore_errors=True)  # what is left is removed by the next remove_dead()


def sync_directory(path: AnyPath) -> None:
    """Makes the names in a directory durable."""
    with naming(Path(path)):
        _sync(path)


_held: set[StagedDirectory] = set()


def _forget_in_child() -> None:
    """A fork has copies of the descriptors, which would keep the locks when its parent is dead."""
    for staged in list(_held):
        staged._release()


os.register_at_fork(after_in_child=_forget_in_child)


def _make_hidden(target: Path) -> tuple[Path, int]:
    """A new directory, locked: who looks for dead ones may be quicker than the lock, so the name is looked at again."""
    while True:
        path = _hidden_name(target, "saving")
        os.mkdir(path)
        with suppress(FileNotFoundError):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            if _lock(fd, fcntl.LOCK_SH) is not False and _is_named(fd, path):
                return path, fd
            os.close(fd)


def _hidden_name(target: Path, why: str) -> Path:
    name = target.name if why == "replaced" else _cut(target.name)  # by its name the replaced one is found again
    return target.with_name(f".{name}.{why}-{secrets.token_hex(8)}")


def _cut(name: str) -> str:
    """So much of a name that what is put around it fits too."""
    return os.fsdecode(os.fsencode(name)[:_MOST_OF_A_NAME])


def _lock(fd: int, kind: int) -> bool | None:
    """Whether the lock could be had without waiting; None where there are no such locks."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_named(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _lock(fd, fcntl.LOCK_SH)
        yield
    finally:
        os.close(fd)


def _remove_if_dead(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        if _lock(fd, fcntl.LOCK_EX) is not True or not _is_named(fd, path):
            return False
        if not _is_restored(path):
            shutil.rmtree(path, ignore_errors=True)
        return not os.path.lexists(path)
    finally:
        os.close(fd)


def _is_restored(path: Path) -> bool:
    """Gives an old target its name again, where nothing took its place."""
    found = _HIDDEN.fullmatch(path.name)
    if found is None or found["why"] != "replaced":
        return False
    try:
        return _rename_to_free(path, path.with_name(found["name"]))
    except OSError:
        return True  # it is left, for somebody who may


def _sync_tree(root: Path, sync_files: bool) -> None:
    def refuse(problem: OSError) -> None:
        raise problem

    for folder, _, names in os.walk(root, onerror=refuse):
        if sync_files:
            for name in names:
                path = os.path.join(folder, name)
                if stat.S_ISREG(os.lstat(path).st_mode):
                    _sync(path)
        _sync(folder)


def _sync(path: AnyPath) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _rename_to_free(path: Path, target: Path) -> bool:
    """False where the name is taken."""
    try:
        if _rename(path, target, _RENAME_NOREPLACE):
            return True
    except FileExistsError:
        return False
    if os.path.lexists(target):
        return False
    os.rename(path, target)
    return True


def _rename(path: Path, target: Path, flags: int) -> bool:
    """renameat2. False where the system or the filesystem does not have it."""
    import ctypes  # wanted once in a save

    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is None:
        return False
    if function(_AT_FDCWD, os.fsencode(path), _AT_FDCWD, os.fsencode(target), ctypes.c_uint(flags)) == 0:
        return True
    code = ctypes.get_errno()
    if code in _CANT:
        return False
    raise OSError(code, os.strerror(code), str(path), None, str(target))


_ERRORS: tuple[tuple[type[OSError], type[Error]], ...] = (
    (FileNotFoundError, NotFoundError),
    (PermissionError, PermissionDeniedError),
    (IsADirectoryError, DirectoryError),
)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """What the system refuses, in one line that names the directory by the name it was to have."""
    try:
        yield
    except OSError as problem:
        if isinstance(problem, Error):
            raise
        kind = next((ours for theirs, ours in _ERRORS if isinstance(problem, theirs)), IoError)
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            kind = NoSpaceError
        error = kind(f"{path}: {problem.strerror}")
        error.errno = problem.errno
        raise error from problem
