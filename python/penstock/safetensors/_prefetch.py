"""safe_open.prefetch: tensors are read in the background, and handed out once each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from .._fork import new_lock
from .._options import parse_size
from ..errors import ArgumentError, ArgumentTypeError, UnknownTensorError

if TYPE_CHECKING:
    from types import TracebackType

    from .._frameworks import Info, Landing
    from .._parts import Part
    from .._reader import Reader

Plan = Mapping[str, "slice | None"]

_MAX_BUFFER = parse_size("256MiB")  # what is read, or passed over by a take(), and not yet handed out


class Wanted(NamedTuple):
    """A tensor of a plan, and the rows that are wanted of it; None for all."""

    name: str
    rows: tuple[int, int] | None
    nbytes: int


class PrefetchLoader:
    """Tensors of one file that are read in the background. Each is handed out once, by `take` or by iterating.

    At most 256 MiB (but always one tensor) are read ahead of whoever takes them. Safe from several threads. It does not
    need the file's handle any longer; tensors that were handed out need neither.
    """

    def __init__(
        self, reader: Reader, landing: Landing, convert: Callable[[str, Any], Any], plan: list[Wanted], threads: int
    ) -> None:
        self._core = reader.core
        self._landing = landing
        self._convert = convert
        self._plan = {wanted.name: wanted for wanted in plan}
        self._numbers = {wanted.name: number for number, wanted in enumerate(plan)}
        self._begins = list(accumulate((wanted.nbytes for wanted in plan), initial=0))
        self._left = set(self._plan)  # not handed out
        self._passed: dict[str, Any] = {}  # landed before somebody wanted them
        self._passed_bytes = 0
        self._landed = 0  # how many the stream has given
        self._closed = False
        self._lock = new_lock()
        self._options = reader.options(
            cache=_cache(reader), max_buffer=_MAX_BUFFER, threads=min(threads, os.cpu_count() or 1)
        )
        parts: dict[str, Part] = {wanted.name: [[(*wanted.rows, 1)]] for wanted in plan if wanted.rows is not None}
        self._stream = self._core.stream(list(self._plan), self._options, parts, landing.allocator)
        self._stream.start()

    def names(self) -> list[str]:
        """What this loader hands out, in the order of the file."""
        return list(self._plan)

    def take(self, name: str) -> Any:
        """One tensor, or the rows of it that were planned; waits for its bytes.

        In the order of `names` that is quickest. One further ahead than the loader may read is read by itself.
        """
        with self._lock:
            self._check(name)
            if name in self._passed:
                tensor = self._pop(name)
            else:
                tensor = self._wait_for(name) if self._is_near(name) else self._read_alone(name)
            self._hand_out(name)
        return self._convert(name, tensor)

    def close(self) -> None:
        """Stops reading and lets go of what was not taken. Tensors that were handed out stay."""
        self._closed = True
        with self._lock:
            self._stream.close()
            self._passed.clear()

    def __len__(self) -> int:
        return len(self._plan)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        while (landed := self._next()) is not None:
            name, tensor = landed
            yield name, self._convert(name, tensor)

    def __enter__(self) -> PrefetchLoader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check(self, name: str) -> None:
        self._check_open()
        if not isinstance(name, str):
            raise ArgumentTypeError(f"tensor names are strings, not {type(name).__name__}")
        if name not in self._plan:
            raise UnknownTensorError(f"{name} is not in the prefetch plan")
        if name not in self._left:
            raise ArgumentError(f"{name} was already delivered, and the loader hands out each tensor once")

    def _check_open(self) -> None:
        if self._closed:
            raise ArgumentError("the prefetch loader is closed")

    def _next(self) -> tuple[str, Any] | None:
        """What has landed and was not taken, the oldest first."""
        with self._lock:
            self._check_open()
            if not self._left:
                return None
            if self._passed:
                name = next(iter(self._passed))
                tensor = self._pop(name)
            else:
                name, tensor = self._land()
            while name not in self._left:  # it was read alone
                name, tensor = self._land()
            self._hand_out(name)
        return name, tensor

    def _land(self) -> tuple[str, Any]:
        """The next tensor of the stream."""
        landed = self._stream.next()
        if landed is None:
            raise ArgumentError("the prefetch loader is closed")
        self._landed += 1
        ((name, tensor),) = self._landing.build(*landed).items()
        return name, tensor

    def _is_near(self, name: str) -> bool:
        """Whether what comes before a tensor may be kept until somebody takes it."""
        number = self._numbers[name]
        between = self._begins[number] - self._begins[self._landed]
        return number >= self._landed and self._passed_bytes + between <= _MAX_BUFFER

    def _wait_for(self, name: str) -> Any:
        while True:
            landed, tensor = self._land()
            if landed == name:
                return tensor
            if landed in self._left:
                self._passed[landed] = tensor
                self._passed_bytes += self._plan[landed].nbytes

    def _pop(self, name: str) -> Any:
        self._passed_bytes -= self._plan[name].nbytes
        return self._passed.pop(name)

    def _read_alone(self, name: str) -> Any:
        rows = self._plan[name].rows
        ranges = [] if rows is None else [rows]
        memories, described = self._core.load_slice(name, ranges, self._options, self._landing.allocator)
        return self._landing.build(memories, described)[name]

    def _hand_out(self, name: str) -> None:
        self._left.remove(name)
        if not self._left:
            self._stream.close()


def parse_plan(plan: Any, reader: Reader, path: str) -> list[Wanted]:
    """What is wanted, in the order of the file."""
    infos = reader.core.infos()
    if plan is None:
        return [Wanted(info[0], None, info[5]) for info in infos]
    if not isinstance(plan, Mapping):
        raise ArgumentTypeError(f"plan must be a dict of names to None or a slice, not {type(plan).__name__}")
    if not plan:
        raise ArgumentError(f"{path}: the prefetch plan selects no tensors")
    names = {info[0] for info in infos}
    for name in plan:
        if name not in names:
            raise UnknownTensorError(f"{path}: the file does not contain tensor {name}")
    return [_wanted(info, plan[info[0]]) for info in infos if info[0] in plan]


def _wanted(info: Info, rows: Any) -> Wanted:
    name, _, shape, _, _, nbytes = info
    if rows is None:
        return Wanted(name, None, nbytes)
    if not isinstance(rows, slice):
        raise ArgumentTypeError(f"{name}: a plan has None or a slice of the first dimension, not {rows!r}")
    what = f"{name}: invalid prefetch plan slice {rows.start}:{rows.stop}:{rows.step}"
    if not shape:
        raise ArgumentError(f"{what}: a 0-d tensor has no rows")
    if rows.step not in (None, 1):
        raise ArgumentError(f"{what}: rows are taken with step 1")
    count = shape[0]
    begin, end = _bound(what, rows.start, 0, count), _bound(what, rows.stop, count, count)
    if not 0 <= begin <= end <= count:
        raise ArgumentError(f"{what}: out of range, the tensor has {count} rows")
    return Wanted(name, (begin, end), nbytes // count * (end - begin) if count else 0)


def _bound(what: str, bound: Any, default: int, count: int) -> int:
    if bound is None:
        return default
    if not isinstance(bound, int):
        raise ArgumentTypeError(f"{what}: the bounds are integers")
    return bound + count if bound < 0 else bound


def _cache(reader: Reader) -> str:
    """The handle's policy, but for a file that would be mapped after the rest of it was read: nobody waits for that."""
    cache: str = reader.options.keywords["cache"]
    return "copy" if cache == "auto" and reader.resident_bytes < reader.nbytes else cache
