"""Saves sets in processes that are killed: at a moment, or after a system call that changes or syncs something.

A process of its own, which forks without threads of torch or of the tests. It takes orders as lines of JSON and answers
each with one; see Order.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import signal
import struct
import sys
import time
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import penstock


class Order(TypedDict):
    folder: str
    shapes: dict[str, list[int]]
    value: int  # of every element
    limit: int | None  # max_shard_size
    durable: bool
    source: str | None  # a file to convert; it is made for that
    kill_after: float | None  # seconds
    trace: bool
    kill_at: int | None  # with trace: after so many calls


class Answer(TypedDict):
    error: str | None
    killed: bool
    seconds: float
    calls: list[str]  # what was traced


# The calls by which a save changes a directory or makes something durable, by their numbers.
CALLS = {
    "x86_64": {
        18: "pwrite",
        73: "flock",
        74: "fsync",
        77: "ftruncate",
        257: "create",
        263: "unlink",
        264: "rename",
        265: "link",
        316: "rename",
    },
    "aarch64": {
        68: "pwrite",
        32: "flock",
        82: "fsync",
        46: "ftruncate",
        56: "create",
        35: "unlink",
        38: "rename",
        37: "link",
        276: "rename",
    },
}.get(platform.machine(), {})

TRACEME, SYSCALL, SETOPTIONS, GET_SYSCALL_INFO = 0, 24, 0x4200, 0x420E
SYSCALLS_ARE_MARKED, KILL_WITH_TRACER = 1, 0x100000
ENTRY, EXIT = 1, 2

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


def ptrace(request: int, pid: int, address: int = 0, data: Any = 0) -> None:
    if libc.ptrace(request, pid, address, data) < 0:
        raise OSError(ctypes.get_errno(), f"ptrace: {os.strerror(ctypes.get_errno())}")


def act(order: Order) -> None:
    target = Path(order["folder"]) / "model.safetensors"
    options: dict[str, Any] = {"max_shard_size": order["limit"], "durable": order["durable"]}
    if order["source"] is not None:
        penstock.convert(order["source"], target, overwrite=True, **options)
    else:
        penstock.save(make_state(order), target, **options)


def make_state(order: Order) -> dict[str, np.ndarray]:
    return {name: np.full(shape, order["value"], np.float32) for name, shape in order["shapes"].items()}


def start(order: Order) -> int:
    pid = os.fork()
    if pid > 0:
        return pid
    try:
        if order["trace"]:
            ptrace(TRACEME, 0)
            os.kill(os.getpid(), signal.SIGSTOP)
        act(order)
        os._exit(0)
    except BaseException as error:
        print(error, file=sys.stderr)
        os._exit(1)


def call_at(pid: int) -> tuple[int, str | None]:
    """ENTRY or EXIT, and at the entry which call of interest it is."""
    info = ctypes.create_string_buffer(88)
    ptrace(GET_SYSCALL_INFO, pid, len(info), ctypes.addressof(info))
    stage, number, flags = info.raw[0], *struct.unpack_from("<Q16xQ", info.raw, 24)
    name = CALLS.get(number) if stage == ENTRY else None
    return stage, None if name == "create" and not flags & os.O_CREAT else name


def follow(pid: int, kill_at: int | None) -> tuple[list[str], int]:
    """The calls of a traced process, which is killed after the one of this number, and how it ended."""
    os.waitpid(pid, 0)
    ptrace(SETOPTIONS, pid, 0, SYSCALLS_ARE_MARKED | KILL_WITH_TRACER)
    calls: list[str] = []
    entered = None
    passed_on = 0
    while True:
        ptrace(SYSCALL, pid, 0, passed_on)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSTOPPED(status):
            return calls, status
        passed_on = 0 if os.WSTOPSIG(status) == signal.SIGTRAP | 0x80 else os.WSTOPSIG(status)
        if passed_on:
            continue
        stage, name = call_at(pid)
        if stage == ENTRY:
            entered = name
        elif entered is not None:
            calls.append(entered)
            entered = None
            if len(calls) == kill_at:
                os.kill(pid, signal.SIGKILL)
                return calls, os.waitpid(pid, 0)[1]


def obey(order: Order) -> Answer:
    if order["source"] is not None:
        penstock.save(make_state(order), order["source"], durable=False)
    begin = time.monotonic()
    pid = start(order)
    calls: list[str] = []
    if order["trace"]:
        calls, status = follow(pid, order["kill_at"])
    else:
        if order["kill_after"] is not None:
            time.sleep(order["kill_after"])
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    killed = os.WIFSIGNALED(status)
    error = None if killed or status == 0 else f"ended with {os.waitstatus_to_exitcode(status)}"
    return {"error": error, "killed": killed, "seconds": time.monotonic() - begin, "calls": calls}


def main() -> None:
    for line in sys.stdin:
        try:
            answer = obey(json.loads(line))
        except OSError as error:
            answer = {"error": str(error), "killed": False, "seconds": 0, "calls": []}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
