"""Files that Python writes, elsewhere until they are whole.

Rewriting a file in place pulls the bytes away under whoever has it mapped, and leaves half a file when it fails.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from ._steps import StagedDirectory, remove_dead
from .errors import ArgumentError, DirectoryError, NotFoundError

if TYPE_CHECKING:
    from types import TracebackType

    from ._options import Path


class Replacement:
    """A place for a new file, `path`, which `publish` puts in the place of `target`.

    It has the target's name, in a hidden folder beside it: torch writes the name of a file into it. The new file has
    the mode of the one it replaces. A symbolic link is followed: it goes on leading to the file. What a process that
    was killed has left of such folders is removed. As a context manager it gives the path, publishes at the end, and
    after an exception leaves the target alone.
    """

    def __init__(self, target: Path) -> None:
        self._target = os.path.realpath(target)
        if os.path.isdir(self._target):
            raise DirectoryError(f"{self._target}: is a directory")
        if os.path.exists(self._target) and not os.path.isfile(self._target):
            raise ArgumentError(f"{self._target}: exists and is not a regular file; it is not replaced")
        folder = os.path.dirname(self._target)
        if not os.path.isdir(folder):
            raise NotFoundError(f"{self._target}: the directory {folder} does not exist")
        remove_dead(folder, of=os.path.basename(self._target))
        self._folder = StagedDirectory(self._target, durable=False)
        self.path = os.path.join(self._folder.path, os.path.basename(os.fspath(target)))

    def publish(self) -> None:
        try:
            with suppress(FileNotFoundError):
                self._take_mode(os.stat(self._target))
            os.replace(self.path, self._target)
        finally:
            self.discard()

    def _take_mode(self, old: os.stat_result) -> None:
        """Of the file that is replaced; of somebody else's no more than the umask leaves."""
        ours = os.stat(self.path)
        mode = old.st_mode & 0o777
        os.chmod(self.path, mode if old.st_uid == ours.st_uid else mode & ours.st_mode)

    def discard(self) -> None:
        self._folder.abandon()

    def __enter__(self) -> str:
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.publish()
        else:
            self.discard()
