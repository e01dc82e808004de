"""The simulated accelerator in Python: torch's device "sim", and what tests set and ask.

`start()` builds what is missing, loads the driver's library into the process and makes the torch backend known. Before
that this process must not have looked for a driver.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "build" / "sim"


def _counter_fields() -> list[tuple[str, Any]]:
    """The fields of sim_counters, as the header has them."""
    text = (ROOT / "tests" / "sim" / "sim.h").read_text()
    body = re.sub(r"/\*.*?\*/", "", text.partition("struct sim_counters {")[2].partition("};")[0], flags=re.DOTALL)
    fields = re.findall(r"(\w+)(?:\[(\d+)\])?\s*[,;]", body)
    return [(name, ctypes.c_uint64 * int(count) if count else ctypes.c_uint64) for name, count in fields]


DEVICE_MEMORY, PINNED_MEMORY, STREAMS, EVENTS, FILES, CONTEXTS = 1, 2, 4, 8, 16, 32


class Counters(ctypes.Structure):
    """What the driver counted."""

    _fields_ = _counter_fields()


class Simulator:
    """The control functions of the simulated driver, and of the torch backend."""

    def __init__(self) -> None:
        subprocess.run(
            [ROOT / "scripts" / "build_sim.sh", "torch"], check=True, env={**os.environ, "PYTHON": sys.executable}
        )
        self.driver = ctypes.CDLL(str(FOLDER / "libcuda.so.1"), mode=ctypes.RTLD_GLOBAL)
        os.environ["PENSTOCK_LIBCUFILE"] = str(FOLDER / "libcufile.so.0")
        torch.ops.load_library(str(FOLDER / "libpenstock_sim_torch.so"))
        self.backend = ctypes.CDLL(str(FOLDER / "libpenstock_sim_torch.so"))
        self.driver.sim_violations.restype = self.driver.sim_leaks.restype = ctypes.c_size_t
        self.driver.sim_calls.restype = self.backend.sim_torch_allocated.restype = ctypes.c_uint64

    def reset(self) -> None:
        """As it was at the start, but for what lives."""
        self.driver.sim_reset()

    def set(self, **settings: int) -> None:
        for name, value in settings.items():
            assert self.driver.sim_set(name.encode(), str(value).encode()) == 0, name

    def fail(self, *what: str) -> None:
        """Makes calls fail: "cuMemAlloc_v2:1:2", the first from now on with error 2; see sim.h."""
        assert self.driver.sim_fail(",".join(what).encode()) == 0, what

    def hold(self, hold: bool) -> None:
        self.driver.sim_hold(int(hold))

    def calls(self, symbol: str) -> int:
        return int(self.driver.sim_calls(symbol.encode()))

    def counters(self) -> Counters:
        counters = Counters()
        self.driver.sim_read_counters(ctypes.byref(counters))
        return counters

    def clear_counters(self) -> None:
        self.driver.sim_clear_counters()

    def violations(self) -> list[str]:
        return self._lines(self.driver.sim_violations)

    def leaks(self, kinds: int) -> list[str]:
        return self._lines(functools.partial(self.driver.sim_leaks, kinds))

    @staticmethod
    def _lines(function: Any) -> list[str]:
        buffer = ctypes.create_string_buffer(2**16)
        function(buffer, ctypes.c_size_t(len(buffer)))
        return buffer.value.decode().splitlines()

    def peek(self, address: int, nbytes: int) -> bytes:
        """Bytes of the device, without the driver."""
        buffer = ctypes.create_string_buffer(nbytes)
        assert self.driver.sim_peek(buffer, ctypes.c_uint64(address), ctypes.c_size_t(nbytes)) == 0
        return buffer.raw

    def poke(self, address: int, data: bytes) -> None:
        assert self.driver.sim_poke(ctypes.c_uint64(address), data, ctypes.c_size_t(len(data))) == 0

    def allocated(self, device: int = 0, *, peak: bool = False) -> int:
        """Bytes that torch's tensors have there."""
        return int(self.backend.sim_torch_allocated(device, int(peak)))

    def empty_cache(self) -> None:
        """Gives back to the driver what torch keeps."""
        gc.collect()
        self.backend.sim_torch_empty_cache()

    def fill_late(self, tensor: torch.Tensor, value: int, milliseconds: int) -> None:
        """Queues a slow kernel on the current stream that fills the tensor's memory in the end."""
        self.backend.sim_torch_fill_late(
            tensor.device.index,
            ctypes.c_uint64(tensor.data_ptr()),
            ctypes.c_uint64(tensor.nbytes),
            ctypes.c_ubyte(value),
            milliseconds,
        )

    @contextlib.contextmanager
    def watched(self, *, pinned: int = 48 << 20, pageable: int = 0) -> Iterator[Counters]:
        """What runs in it breaks no rule, pins at most so much, makes no pageable copies, leaves no handles behind.

        The counters are filled at the end.
        """
        before = self.counters()
        self.clear_counters()
        counters = Counters()
        yield counters
        self.driver.sim_read_counters(ctypes.byref(counters))
        assert self.violations() == []
        assert counters.pageable_copies <= pageable
        assert counters.pinned_bytes_peak <= max(pinned, before.pinned_bytes)
        assert (counters.streams, counters.events) == (before.streams, before.events)
        assert (counters.file_handles, counters.file_buffers) == (before.file_handles, before.file_buffers)
        assert counters.copies_queued == 0


def _device_module(simulator: Simulator) -> types.ModuleType:
    """What torch looks for as torch.sim."""
    module = types.ModuleType("torch.sim")
    functions = {
        "is_available": lambda: _count(simulator) > 0,
        "device_count": lambda: _count(simulator),
        "device": lambda device: torch.accelerator.device_index(torch.device(device).index),
        "current_device": torch.accelerator.current_device_index,
        "set_device": torch.accelerator.set_device_index,
        "current_stream": torch.accelerator.current_stream,
        "set_stream": torch.accelerator.set_stream,
        "synchronize": torch.accelerator.synchronize,
        "empty_cache": simulator.empty_cache,
        "Stream": torch.Stream,
        "Event": torch.Event,
        "_is_in_bad_fork": lambda: False,
        "manual_seed_all": lambda seed: None,
    }
    for name, function in functions.items():
        setattr(module, name, function)
    return module


def _count(simulator: Simulator) -> int:
    count = ctypes.c_int()
    simulator.driver.cuInit(0)
    simulator.driver.cuDeviceGetCount(ctypes.byref(count))
    return count.value


@functools.cache
def start() -> Simulator:
    """The simulator of this process."""
    simulator = Simulator()
    torch._register_device_module("sim", _device_module(simulator))
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_storage=True, unsupported_dtype=[torch.quint8]
    )
    return simulator
