"""Ranks that act together: what one of them can't do none does, and none waits for ever."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
import torch.distributed as dist

from ..errors import DistributedError, Error

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")

_POLL_SECONDS = 0.001

# The same function under its new and its old name.
_all_gather: Callable[..., Any] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


class Share(Protocol):
    """Bytes of a block, half open, that one rank has read."""

    @property
    def begin(self) -> int: ...

    @property
    def end(self) -> int: ...


def control_group(timeout: float) -> dist.ProcessGroup:
    """A gloo group of all ranks, whose operations give up after `timeout` seconds.

    All ranks make it at the same point.
    """
    group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
    return group


class Ranks:
    """All ranks of the default process group, while they read or write one file. A context manager.

    They agree through a gloo group of their own: the caller's group may wait much longer, and may be in use by another
    thread. `control` is one that is kept (see `control_group`, with the same time-out), used by one thread at a time;
    without it a new one is made. On GPUs the data goes through the caller's NCCL group, everything else through gloo.
    """

    def __init__(
        self, title: str, device: torch.device, timeout: float, control: dist.ProcessGroup | None = None
    ) -> None:
        self._title = title
        self._timeout = timeout
        self._keeps_control = control is not None
        self.is_broken = False  # a rank did not answer: the group is of no more use
        with self._reachable():
            self._control: Any = control_group(timeout) if control is None else control
        self.rank, self.world = self._control.rank(), self._control.size()
        self.uses_nccl = device.type == "cuda" and "nccl" in str(dist.get_backend_config())
        self._data: Any = dist.group.WORLD if self.uses_nccl else self._control

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The last reference goes here, and with it the group's threads, even where an error keeps this object. One that
        # is still letting go of a tensor when the interpreter ends would abort the process.
        control, self._control, self._data = self._control, None, None
        if not self._keeps_control:
            dist.destroy_process_group(control)

    def together(self, action: Callable[[], T]) -> T:
        """Runs `action` on every rank. Where one fails all raise: it its own error, the others one that names it."""
        try:
            result = action()
        except BaseException as error:
            self._agree(error)
            raise
        self._agree(None)
        return result

    def send(self, content: bytes, sender: int) -> bytes:
        """The sender's bytes, on every rank."""
        with self._reachable():
            length = torch.tensor([len(content)])
            self._control.broadcast(length, sender).wait()
            data = torch.frombuffer(bytearray(content), dtype=torch.uint8) if self.rank == sender and content else None
            data = torch.empty(int(length), dtype=torch.uint8) if data is None else data
            if len(data) > 0:
                self._control.broadcast(data, sender).wait()
        return data.numpy().tobytes()

    def first_that_differs(self, digest: bytes) -> int | None:
        """The first rank whose digest is not rank 0's."""
        digests = self.digests(digest)
        return next((rank for rank, other in enumerate(digests) if other != digests[0]), None)

    def digests(self, digest: bytes) -> list[bytes]:
        """Every rank's, of the same length."""
        own = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
        everyone = [torch.empty_like(own) for _ in range(self.world)]
        with self._reachable():
            self._control.allgather(everyone, own).wait()
        return [other.numpy().tobytes() for other in everyone]

    def exchange(
        self, block: torch.Tensor, shares: Sequence[Share], piece: torch.Tensor | None, *, is_even: bool
    ) -> None:
        """Gives every rank the shares of all. `block` is bytes, and so is `piece`, what this rank has read.

        is_even: the shares are of one size and lie side by side.
        """
        with self._reachable():
            if is_even and piece is not None:
                whole = block[shares[0].begin : shares[-1].end]
                _all_gather(whole, piece, group=self._data)
                return
            if piece is not None:
                own = shares[self.rank]
                block[own.begin : own.end].copy_(piece)
            under_way = [
                dist.broadcast(block[share.begin : share.end], rank, group=self._data, async_op=True)
                for rank, share in enumerate(shares)
                if share.end > share.begin
            ]
            for work in under_way:
                work.wait()

    def wait_for_device(self) -> None:
        """NCCL only queues its work: waits until it is done, but no longer than the time-out."""
        if not self.uses_nccl:
            return
        stream, deadline = torch.cuda.current_stream(), time.monotonic() + self._timeout
        while not stream.query():
            if time.monotonic() > deadline:
                raise DistributedError(f"{self._title}: NCCL did not finish within {self._timeout:g} s")
            time.sleep(_POLL_SECONDS)

    def _agree(self, error: BaseException | None) -> None:
        """Returns where all went well; the first rank that failed tells the others why."""
        flag = torch.tensor([0 if error is None else self.world - self.rank])
        with self._reachable():
            self._control.allreduce(flag, dist.ReduceOp.MAX).wait()
        if int(flag) == 0:
            return
        failed = self.world - int(flag)
        reason = self.send(_describe(error).encode(errors="replace"), failed).decode()
        if error is None:
            where = "" if self._title in reason else f"{self._title}: "
            raise DistributedError(f"{where}rank {failed} failed: {reason}")

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        """What torch reports when a rank is gone, in our words."""
        try:
            yield
        except RuntimeError as problem:
            if isinstance(problem, Error):
                raise
            self.is_broken = True
            raise DistributedError(
                f"{self._title}: a rank is gone, or did not answer within {self._timeout:g} s ({gist(problem)})"
            ) from problem


def _describe(error: BaseException | None) -> str:
    if error is None or isinstance(error, Error):
        return str(error or "")
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def gist(problem: RuntimeError) -> str:
    """The first sentence, without the place in torch's sources."""
    return re.sub(r"^\[[^\]]*\] *", "", str(problem).strip()).split("\n")[0].split(". ")[0]
