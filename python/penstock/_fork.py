"""Locks that a child of fork() finds free, whatever threads of its parent held."""

from __future__ import annotations

import os
import threading
from typing import Any, TypeVar
from weakref import WeakSet

_locks: WeakSet[Any] = WeakSet()
LockT = TypeVar("LockT")


def free_in_child(lock: LockT) -> LockT:
    """The same lock. What it guards is changed in steps after each of which it is whole: nothing waits for a fork."""
    _locks.add(lock)
    return lock


def _free_all() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # as the locks of `logging` and `concurrent.futures` are


os.register_at_fork(after_in_child=_free_all)


def new_lock() -> threading.Lock:
    """A lock for what threads share."""
    return free_in_child(threading.Lock())
