"""Ranks that load together: how they meet, agree on every call, and tell each other what went wrong.

Protocol. A group has a number, the same on every rank, because all ranks make their groups in the same order; the
number names a corner of the default process group's store. Nothing is exchanged until the first collective call. Then:

1. A rank writes ``here/<rank>`` and waits until all have. Whoever does not come is named when the time is over.
2. The ranks connect through a gloo group of their own, whose operations end after the time-out: the caller's may wait
   for half an hour, and may be in use by another thread.
3. Every collective call begins with one all-reduce of 24 bytes: a digest of what is called, and of the calls before it
   that each rank could answer by itself (`note`), and whether this rank can. It costs one round trip (0.2 to 0.5 ms
   over a local network of processes, once for a bundle of tensors). Where ranks call different things, or one of them
   can't do its part, all raise, and the group stays usable.
4. A rank that fails outside of such a call writes ``failed/<rank>`` with the cause and closes its connections; so does
   one that finds a peer gone. The others notice at once, at what they wait for, and read who failed and why.
5. The store is often in the process of rank 0, which an error may end. So that rank raises only when every other has
   written that it knows (``knows/<rank>``), has failed too, or is ``gone/<rank>``, or after two seconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist

from .._parallel import DEFAULT_TIMEOUT
from ..errors import ArgumentError, DistributedError, Error

if TYPE_CHECKING:
    from typing_extensions import Self

# How long survivors look for word from a rank whose connection broke.
_GRACE_SECONDS = 2.0
_CONNECT_ATTEMPTS = 5
_LEAST_ATTEMPT_SECONDS = 2.0
_FIRST_POLL_SECONDS = 0.001
_LAST_POLL_SECONDS = 0.05
_TEXT_BYTES = 600

_numbers: Counter[str] = Counter()  # of the groups made so far over each process group


def chosen_timeout(given: float | None) -> float:
    """Seconds that a rank is waited for: the keyword's, else $PENSTOCK_TIMEOUT, else 300."""
    text = os.environ.get("PENSTOCK_TIMEOUT")
    source = "timeout" if given is not None else "PENSTOCK_TIMEOUT"
    try:
        seconds = float(given) if given is not None else float(text) if text else DEFAULT_TIMEOUT
    except (TypeError, ValueError):
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ArgumentError(f"{source} is {text if given is None else given!r}, not a number of seconds")
    return seconds


class Members(NamedTuple):
    """Some ranks of the default process group, by their numbers there, and what all of them call this group."""

    name: str
    ranks: list[int]

    @staticmethod
    def of(pg: dist.ProcessGroup) -> Members:
        """Those of a process group."""
        return Members(str(pg.group_name), dist.get_process_group_ranks(pg))


class RankGroup:
    """Ranks while they load together; used by one thread at a time.

    purpose: tells groups apart that different callers make of the same ranks.
    """

    def __init__(self, members: Members, timeout: float, purpose: str) -> None:
        self._members = members.ranks
        self.rank, self.size = self._members.index(dist.get_rank()), len(self._members)
        self.timeout = timeout
        name = f"penstock/{purpose}/{members.name}"
        self._store = _corner(f"{name}/{_numbers[name]}", _default_store())
        _numbers[name] += 1
        self._lane: Any = None  # the gloo group
        self._failure: str | None = None  # why it can't be used any more
        self._told: BaseException | None = None  # what the others have been told of by a call
        self._holders = 1
        self._noted: list[str] = []  # calls since the last one that asked the others
        self._processes: list[int] | None = None  # of all ranks, where each may read the memory of each other
        self._knows_processes = False

    @property
    def lane(self) -> Any:
        """The gloo group, for operations inside `reachable`; `finish` waits for messages."""
        return self._lane

    def finish(self, messages: Iterable[Any]) -> None:
        """Waits for messages between two ranks, each of which has the time-out of the group."""
        for work in messages:
            work.wait(timedelta(seconds=self.timeout))

    def processes(self) -> list[int] | None:
        """The process of each rank, where all are on this machine and may read each other's memory; else None.

        All ranks ask, after they have agreed on something. They find out once.
        """
        if not self._knows_processes:
            from .neighbours import find_neighbours

            with self.reachable("finding out who is on this machine"):
                self._processes = find_neighbours(self._lane, self.size)
            self._knows_processes = True
        return self._processes

    def hold(self) -> Self:
        """One more user, who will call `release`."""
        self._holders += 1
        return self

    def release(self) -> None:
        """Closes the connections when the last user is done."""
        self._holders -= 1
        if self._holders <= 0:
            self._lane = None

    def name(self, rank: int) -> str:
        """A rank, in words; with its number in the default group where that is another."""
        return f"rank {rank}" if self._members[rank] == rank else f"rank {rank} (global rank {self._members[rank]})"

    def note(self, call: str) -> None:
        """A call that this rank could answer by itself: the next `agree` finds out whether all ranks made it."""
        self._noted.append(call)

    def agree(self, call: str, detail: bytes = b"", error: BaseException | None = None) -> None:
        """Returns when all ranks made the same call with the same detail, after the same others, and none has an error.

        Else all raise: those that have an error do so themselves, after this.
        """
        self._connect()
        calls, self._noted = [*self._noted, call], []
        content = "\0".join(calls).encode() + b"\0" + detail
        digest = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") >> 1
        flags = torch.tensor([digest, ~digest, 0 if error is None else self.size - self.rank])
        with self.reachable(call):
            self._lane.allreduce(flags, dist.ReduceOp.MAX).wait()
        highest, lowest, failed = int(flags[0]), ~int(flags[1]), int(flags[2])
        if failed > 0:
            self._tell_failure(call, self.size - failed, error)
        elif highest != lowest:
            self._tell_difference(calls)

    def together(self, call: str, action: Callable[[], Any], detail: bytes | Callable[[Any], bytes] = b"") -> Any:
        """Runs `action` on every rank, then agrees; on `detail` too, or on what that makes of the result.

        Where one fails all raise: it its own error, the others one that names it.
        """
        try:
            result = action()
        except Exception as error:
            self.agree(call, b"", error)
            raise
        self.agree(call, detail(result) if callable(detail) else detail)
        return result

    def gather(self, call: str, content: bytes) -> list[bytes]:
        """Every rank's content, of any length, on every rank."""
        self._connect()
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with self.reachable(call):
            self._lane.allgather(lengths, torch.tensor([len(content)])).wait()
            longest = max(1, max(int(length) for length in lengths))
            own = torch.frombuffer(bytearray(content.ljust(longest, b"\0")), dtype=torch.uint8)
            everyone = [torch.empty_like(own) for _ in range(self.size)]
            self._lane.allgather(everyone, own).wait()
        return [data.numpy().tobytes()[: int(length)] for data, length in zip(everyone, lengths, strict=True)]

    def fail(self, error: BaseException) -> None:
        """Tells the others of an error outside of any call, and leaves the group."""
        if self._failure is not None:
            return
        self._leave(f"{self.name(self.rank)} failed: {describe(error)}")
        if error is not self._told:
            self._linger()

    @contextmanager
    def reachable(self, call: str) -> Iterator[None]:
        """What torch reports when a rank is gone, as an error that names the rank."""
        try:
            yield
        except RuntimeError as problem:
            if isinstance(problem, Error):
                raise
            raise DistributedError(f"{call}: {self._find_cause(problem)}") from problem

    def _connect(self) -> None:
        if self._failure is not None:
            raise DistributedError(f"these ranks have parted: {self._failure}")
        if self._lane is not None:
            return
        with self.reachable("connecting the ranks"):
            self._store.set(f"here/{self.rank}", "")
            self._wait_for_all()
            # Gloo tries this often to connect to a rank that has died since it came, and each time as long.
            attempt = max(self.timeout / _CONNECT_ATTEMPTS, min(self.timeout, _LEAST_ATTEMPT_SECONDS))
            store = _corner("lane", self._store)
            lane: Any = dist.ProcessGroupGloo(store, self.rank, self.size, timedelta(seconds=attempt))
            lane._set_default_timeout(timedelta(seconds=self.timeout))
            self._lane = lane

    def _wait_for_all(self) -> None:
        missing = self._missing("here", self.timeout)
        if missing:
            names = ", ".join(map(self.name, missing))
            cause = f"{names} did not come within {self.timeout:g} s"
            self._leave(cause, missing)
            self._linger()
            raise DistributedError(f"connecting the ranks: {cause}")

    def _missing(self, word: str, seconds: float) -> list[int]:
        """The ranks that have not written this word when the time is over. Raises when one has written of a failure."""
        awaited = [rank for rank in range(self.size) if rank != self.rank]
        deadline, pause = time.monotonic() + seconds, _FIRST_POLL_SECONDS
        while True:
            awaited = [rank for rank in awaited if not self._store.check([f"{word}/{rank}"])]
            self._raise_told_failure()
            if not awaited or time.monotonic() > deadline:
                return awaited
            time.sleep(pause)
            pause = min(pause * 2, _LAST_POLL_SECONDS)

    def _raise_told_failure(self) -> None:
        """Those who only heard of a failure don't tell it again."""
        for rank in range(self.size):
            if rank != self.rank and self._store.check([f"failed/{rank}"]):
                reason = self._store.get(f"failed/{rank}").decode(errors="replace")
                self._part(reason)
                self._linger()
                raise DistributedError(reason)

    def _find_cause(self, problem: RuntimeError) -> str:
        """Who is gone: of those that are left, each writes that it is; a rank that failed has written why."""
        self._lane = None  # closes the connections: who waits for this rank notices too
        gist = _gist(problem)
        try:
            self._store.set(f"left/{self.rank}", "")
            missing = self._missing("left", min(_GRACE_SECONDS, self.timeout))
        except DistributedError as told:
            return str(told)
        except RuntimeError:
            self._part(f"the store of {self._owner_of_store()} can't be reached: it is gone ({gist})")
            return str(self._failure)
        names = ", ".join(map(self.name, missing))
        gone = f"{names} {'is' if len(missing) == 1 else 'are'} gone, or did not answer within {self.timeout:g} s"
        cause = f"{gone if missing else 'the connection broke'} ({gist})"
        self._leave(cause, missing)
        self._linger()
        return cause

    def _linger(self) -> None:
        """The store is often in the process of rank 0, whose error may end it: the others read first what was wrong."""
        with suppress(RuntimeError):
            self._store.set(f"knows/{self.rank}", "")
            deadline = time.monotonic() + _GRACE_SECONDS
            while self._members[self.rank] == 0 and time.monotonic() < deadline:
                if all(self._is_done(rank) for rank in range(self.size) if rank != self.rank):
                    return
                time.sleep(_LAST_POLL_SECONDS)

    def _is_done(self, rank: int) -> bool:
        """Whether a rank needs the store no more."""
        return any(self._store.check([f"{word}/{rank}"]) for word in ("knows", "failed", "gone"))

    def _owner_of_store(self) -> str:
        return self.name(self._members.index(0)) if 0 in self._members else "global rank 0"

    def _leave(self, reason: str, gone: Iterable[int] = ()) -> None:
        """Parts, and tells the others why, and who is gone."""
        if self._failure is not None:
            return
        self._part(reason)
        with suppress(RuntimeError):  # the store may have gone with its rank
            for rank in gone:
                self._store.set(f"gone/{rank}", "")
            self._store.set(f"failed/{self.rank}", reason)

    def _part(self, reason: str) -> None:
        self._failure = reason
        self._lane = None

    def _tell_failure(self, call: str, failed: int, error: BaseException | None) -> None:
        """The first rank that failed tells the others why."""
        reason = self._texts(call, describe(error))[failed]
        if error is None:
            raise DistributedError(f"{call}: {self.name(failed)} failed: {reason}")
        self._told = error

    def _tell_difference(self, calls: list[str]) -> None:
        """Who did what else than the first rank, and where they parted."""
        everyone = [json.loads(text) for text in self.gather(calls[-1], json.dumps(calls).encode())]
        for rank, other in enumerate(everyone):
            for of_first, of_other in zip(everyone[0], other, strict=False):
                if of_first != of_other:
                    raise DistributedError(
                        f"the ranks disagree: {self.name(0)} calls {of_first}, {self.name(rank)} calls {of_other}"
                    )
        raise DistributedError(f"the ranks disagree on what {calls[-1]} is to move")

    def _texts(self, call: str, text: str) -> list[str]:
        own = torch.frombuffer(
            bytearray(text.encode(errors="replace")[:_TEXT_BYTES].ljust(_TEXT_BYTES, b"\0")), dtype=torch.uint8
        )
        everyone = [torch.empty_like(own) for _ in range(self.size)]
        with self.reachable(call):
            self._lane.allgather(everyone, own).wait()
        return [other.numpy().tobytes().rstrip(b"\0").decode(errors="ignore") for other in everyone]


def describe(error: BaseException | None) -> str:
    """An error in one line, for other ranks."""
    if error is None or isinstance(error, Error):
        return str(error or "")
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _gist(problem: RuntimeError) -> str:
    """The first sentence, without the place in torch's sources."""
    return re.sub(r"^\[[^\]]*\] *", "", str(problem).strip()).split("\n")[0].split(". ")[0]


def _corner(prefix: str, store: Any) -> Any:
    """A part of a store, whose keys begin with the prefix."""
    return dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]


def _default_store() -> Any:
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store()
