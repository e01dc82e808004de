"""ParallelLoader: the tensors of many files one after the other, while later ones are read."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from .._load import stream
from .._progress import reporting
from .._select import NameFilter
from ..errors import ArgumentError, CancelledError
from ._planner import Need, check_batch, chunks, need_of, pipeline_depth, read_ahead_bytes
from ._timing import FileBatch, TimingContext, enable_tqdm, parse_time, tqdm
from .allocation import count_tensor
from .common import SafeTensorsMetadata, SingleGroup
from .loader import BaseSafeTensorsFileLoader, SafeTensorsFileLoader

if TYPE_CHECKING:
    from .file_buffer import FilesBufferOnDevice

__all__ = [
    "FileBatch",
    "ParallelLoader",
    "PipelineParallel",
    "TimingContext",
    "enable_tqdm",
    "parse_time",
    "tqdm",
]

Weights = Generator[tuple[str, Any], None, None]
Step = dict[str, set[str]]  # the files of a batch, one of each rank, and which of their tensors


class PipelineParallel:
    """Iterates over the tensors of many files on every rank of a group. The arguments are those of `ParallelLoader`."""

    def __init__(
        self,
        pg: Any | None,
        loader: BaseSafeTensorsFileLoader,
        hf_weights_files: list[str],
        max_concurrent_producers: int = 1,
        queue_size: int = 0,
        use_tqdm_on_load: bool = True,
        tensor_filter: Callable[[str], bool] | None = None,
        max_batch_bytes: int | None = None,
        use_chunk_budget_as_allocation_size: bool = False,
        device_memory_budget: int | None = None,
        accumulate_resident: bool = True,
        resident_tensor: Callable[[str], bool] | None = None,
        broadcast_run_bytes: int = 16 << 20,
        broadcast_run_tensors: int = 64,
        overlap_io: bool = True,
        borrowed_tensors: bool = False,
        **kwargs: Any,
    ) -> None:
        _check_producers(max_concurrent_producers)
        group_size = max((SingleGroup() if pg is None else pg).size(), loader.pg.size())
        if tensor_filter is not None:
            if group_size > 1:
                raise ArgumentError("tensor_filter is for a single process: use all_local=True or pg=None")
            loader.set_tensor_filter(tensor_filter)
        if use_chunk_budget_as_allocation_size and max_batch_bytes is None and device_memory_budget is None:
            raise ArgumentError("use_chunk_budget_as_allocation_size needs max_batch_bytes or device_memory_budget")
        if resident_tensor is not None and not accumulate_resident:
            raise ArgumentError("resident_tensor is for accumulate_resident=True: without it no tensor stays")
        if borrowed_tensors and (accumulate_resident or group_size > 1):
            raise ArgumentError("borrowed_tensors is for a single process, with accumulate_resident=False")
        if broadcast_run_bytes < 0 or broadcast_run_tensors < 0:
            raise ArgumentError("broadcast_run_bytes and broadcast_run_tensors can't be negative")
        self.loader = loader
        self.hf_weights_files = [str(path) for path in hf_weights_files]
        self.max_concurrent_producers = max_concurrent_producers
        self.queue_size = queue_size if overlap_io else -1
        self.use_tqdm_on_load = use_tqdm_on_load
        self.max_batch_bytes = max_batch_bytes
        self.device_memory_budget = device_memory_budget
        self.accumulate_resident = accumulate_resident
        self.resident_tensor = resident_tensor
        self._gds: dict[str, Any] = {}
        self._running: list[Generator[tuple[str, Any], None, bool]] = []
        self._is_closed = False
        self._metadata: dict[str, SafeTensorsMetadata] = {}
        self._ahead = self._plan()

    def iterate_weights(self) -> Weights:
        """Yields (name, tensor), every tensor of every file, on every rank. Tensors stay valid after `close`.

        Where `close` comes before the end the next step raises CancelledError: nobody is to take a part for all.
        """
        if self._is_closed:
            raise ArgumentError("the loader was closed")
        counted = self._counted(self._together() if self.loader.pg.size() > 1 else self._alone())
        self._running.append(counted)
        return self._to_the_end(counted)

    def close(self) -> None:
        """Stops what runs and closes the loader; at any time, from any thread, and again."""
        self._is_closed = True
        running, self._running = self._running, []
        for generator in running:
            if inspect.getgeneratorstate(generator) != inspect.GEN_RUNNING:
                with suppress(ValueError):  # it runs by now: its own thread ends it, at the next tensor
                    generator.close()
        self.loader.close()

    def __enter__(self) -> PipelineParallel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _to_the_end(self, tensors: Generator[tuple[str, Any], None, bool]) -> Weights:
        is_complete = yield from tensors
        if not is_complete:
            raise CancelledError("the loader was closed")

    def _counted(self, tensors: Weights) -> Generator[tuple[str, Any], None, bool]:
        with closing(tensors):
            for name, tensor in tensors:
                if self._is_closed:
                    raise CancelledError("the loader was closed")
                if self.loader.pg.size() == 1:  # else the buffer has counted it
                    count_tensor(tensor)
                yield name, tensor
                del tensor
        return True

    def _alone(self) -> Weights:
        """One process: the engine's own stream over all files, which reads ahead past the ends of files."""
        if not self.hf_weights_files:
            return
        kind, keep = self.loader.framework.get_name(), self.loader._tensor_filter
        tensors = stream(
            self.hf_weights_files,
            self.loader._place(),
            select=None if keep is None else NameFilter(keep),
            framework="numpy" if kind == "numpy" else "torch",
            max_buffer=max(self._ahead, 1),
            progress=enable_tqdm(self.use_tqdm_on_load, self.loader.framework),
            **self._gds,
        )
        if kind != "paddle":
            yield from tensors
            return
        for name, tensor in tensors:
            yield name, self.loader.framework.wrap_tensor(tensor).get_raw()

    def _together(self) -> Weights:
        """Several ranks: each reads one file of a batch, and later batches are read while one is passed around."""
        steps = deque(self._steps())
        total = sum(nbytes for path in self._metadata for _, nbytes in self._sizes(path))
        done = 0
        ahead: deque[tuple[list[str], FilesBufferOnDevice]] = deque()
        try:
            with reporting(enable_tqdm(self.use_tqdm_on_load, self.loader.framework), "loading files") as report:
                while steps or ahead:
                    while steps and len(ahead) < pipeline_depth(self.queue_size):
                        ahead.append(self._start(steps.popleft()))
                    names, buffer = ahead.popleft()
                    with closing(buffer):
                        for name in names:
                            tensor = buffer.get_tensor(name)
                            done += tensor.nbytes
                            yield name, tensor
                            del tensor
                    if report is not None:
                        report(min(done, total), total)
        finally:
            for _, buffer in ahead:
                buffer.close()

    def _start(self, step: Step) -> tuple[list[str], FilesBufferOnDevice]:
        """Begins to read a batch; its names, of all files in turn."""
        loader = self.loader
        loader.reset()
        loader._set_metadata_cache({path: self._metadata[path] for path in step})
        loader.add_filenames({rank: [path] for rank, path in enumerate(step)})
        loader._set_chunk_plan({path: (names, [], None) for path, names in step.items()})
        buffer = loader.copy_files_to_device()
        return list(buffer.key_to_rank_lidx), buffer

    def _steps(self) -> Iterator[Step]:
        """The batches: one file of each rank, or a part of it where the bytes in memory are limited."""
        size = self.loader.pg.size()
        limited = self.max_batch_bytes is not None or self.device_memory_budget is not None
        # Beside what is read there is the tensor in the caller's hands, which another rank has read.
        limit = max(self._ahead // (pipeline_depth(self.queue_size) + 1), 1)
        for first in range(0, len(self.hf_weights_files), size):
            paths = self.hf_weights_files[first : first + size]
            parts = [list(chunks(self._sizes(path), limit)) if limited else [self._names(path)] for path in paths]
            for step in range(max(map(len, parts))):
                yield {path: part[step] for path, part in zip(paths, parts, strict=True) if step < len(part)}

    def _plan(self) -> int:
        """Bytes that may be read ahead. Headers are read here only where a limit or a group needs them."""
        if self.max_batch_bytes is None and self.device_memory_budget is None and self.loader.pg.size() == 1:
            return read_ahead_bytes(Need(0, 0, 0, "", 0), self.queue_size, None, None)
        framework = self.loader.framework
        self._metadata = {
            path: SafeTensorsMetadata.from_file(path, framework) for path in dict.fromkeys(self.hf_weights_files)
        }
        sizes = [each for path in self._metadata for each in self._sizes(path)]
        need = need_of(sizes, self.accumulate_resident, self.resident_tensor)
        check_batch(need, self.max_batch_bytes)
        return read_ahead_bytes(need, self.queue_size, self.max_batch_bytes, self.device_memory_budget)

    def _names(self, path: str) -> set[str]:
        return set(self._metadata[path].tensors)

    def _sizes(self, path: str) -> list[tuple[str, int]]:
        keep = self.loader._tensor_filter
        frames = self._metadata[path].tensors
        return [
            (name, frame.data_offsets[1] - frame.data_offsets[0])
            for name, frame in frames.items()
            if keep is None or keep(name)
        ]


def _check_producers(count: int) -> None:
    if count != 1:
        raise ArgumentError(
            f"max_concurrent_producers must be 1 (got {count}): ranks take batches in one order; "
            "the engine itself keeps many reads in flight"
        )


class ParallelLoader(PipelineParallel):
    """Iterates over the tensors of safetensors files, each read by one rank of a group and given to all of them.

        loader = ParallelLoader(None, ["a.safetensors", "b.safetensors"], device="cpu")
        for name, tensor in loader.iterate_weights():
            ...
        loader.close()

    pg: a torch process group; None or a SingleGroup for one process.
    queue_size: how much is read ahead: -1 little, 0 one batch while another is used, n that many more.
    use_tqdm_on_load: a bar of progress, on rank 0.
    tensor_filter: only tensors for which it is true are read; for one process, or with `all_local`.
    all_local: every rank reads all files for itself, and nothing is passed around.
    max_batch_bytes: bytes that are read ahead at most; no less than the largest tensor.
    device_memory_budget: bytes that all tensors and what is read ahead may take; BudgetInfeasibleError if they can't.
    accumulate_resident: tensors stay; False: the caller copies each and lets it go before the next.
    resident_tensor: which of them stay.
    nogds: True for no GPUDirect Storage; without one False is the same.
    bbuf_size_kb, max_threads, set_numa, debug_log, use_fgds: accepted; the engine chooses for itself.
    broadcast_run_bytes, broadcast_run_tensors: the same.
    use_chunk_budget_as_allocation_size, borrowed_tensors: accepted; tensors own their memory.
    overlap_io: False is queue_size=-1.
    """

    def __init__(
        self,
        pg: Any | None,
        hf_weights_files: list[str],
        max_concurrent_producers: int = 1,
        queue_size: int = 0,
        use_tqdm_on_load: bool = True,
        device: str = "cpu",
        bbuf_size_kb: int = 16 * 1024,
        max_threads: int = 16,
        nogds: bool = False,
        set_numa: bool = True,
        debug_log: bool = False,
        framework: str = "pytorch",
        tensor_filter: Callable[[str], bool] | None = None,
        all_local: bool = False,
        max_batch_bytes: int | None = None,
        use_chunk_budget_as_allocation_size: bool = False,
        device_memory_budget: int | None = None,
        accumulate_resident: bool = True,
        resident_tensor: Callable[[str], bool] | None = None,
        use_fgds: bool = False,
        broadcast_run_bytes: int = 16 << 20,
        broadcast_run_tensors: int = 64,
        overlap_io: bool = True,
        borrowed_tensors: bool = False,
        **kwargs: Any,
    ) -> None:
        _check_producers(max_concurrent_producers)
        if all_local:
            pg = None
        loader = SafeTensorsFileLoader(
            pg,
            device,
            bbuf_size_kb=bbuf_size_kb,
            max_threads=max_threads,
            nogds=nogds,
            set_numa=set_numa,
            debug_log=debug_log,
            framework=framework,
            use_fgds=use_fgds,
            **kwargs,
        )
        try:
            super().__init__(
                pg,
                loader,
                hf_weights_files,
                max_concurrent_producers=max_concurrent_producers,
                queue_size=queue_size,
                use_tqdm_on_load=use_tqdm_on_load,
                tensor_filter=tensor_filter,
                max_batch_bytes=max_batch_bytes,
                use_chunk_budget_as_allocation_size=use_chunk_budget_as_allocation_size,
                device_memory_budget=device_memory_budget,
                accumulate_resident=accumulate_resident,
                resident_tensor=resident_tensor,
                broadcast_run_bytes=broadcast_run_bytes,
                broadcast_run_tensors=broadcast_run_tensors,
                overlap_io=overlap_io,
                borrowed_tensors=borrowed_tensors,
            )
        except BaseException:
            loader.close()
            raise
        self._gds = {"gds": "off"} if nogds else {}
