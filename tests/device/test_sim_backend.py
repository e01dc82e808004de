"""The torch backend of the simulated accelerator does what the other tests rely on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sim_device import Simulator


def test_bytes_go_there_and_back() -> None:
    tensor = torch.arange(12.0).reshape(3, 4)
    there = tensor.to("sim")
    assert there.device == torch.device("sim:0")
    assert torch.equal(there.cpu(), tensor)
    assert torch.equal(there.to("sim:1").cpu(), tensor)
    assert torch.equal(there.t().cpu(), tensor.t())
    assert torch.equal(there.half()[1:].cpu(), tensor.half()[1:])


def test_copies_to_and_from_pageable_memory_are_counted(sim: Simulator) -> None:
    pinned = torch.ones(1000).pin_memory()
    there = pinned.to("sim", non_blocking=True)
    assert sim.counters().pageable_copies == 0
    assert torch.equal(there.cpu(), pinned)
    assert sim.counters().pageable_copies == 1


def test_kernels_are_no_copies(sim: Simulator) -> None:
    there = torch.zeros(4, 5, device="sim")
    there[1] = 7
    there = (there @ there.t()).t().contiguous()
    counters = sim.counters()
    assert (counters.copies_to_device, counters.copies_to_host) == (0, 0)
    assert there.cpu()[1, 1] == 245


def test_memory_is_given_out_again_before_queued_work_has_passed(sim: Simulator) -> None:
    tensor = torch.zeros(4096, dtype=torch.uint8, device="sim")
    address = tensor.data_ptr()
    sim.fill_late(tensor, 9, 50)
    del tensor
    again = torch.empty(4096, dtype=torch.uint8, device="sim")
    assert again.data_ptr() == address
    assert sim.peek(address, 1) == b"\x00"  # still on its way
    assert again.cpu()[0] == 9


def test_another_stream_gets_other_memory() -> None:
    tensor = torch.empty(4096, device="sim")
    address = tensor.data_ptr()
    del tensor
    with torch.Stream("sim"):
        assert torch.empty(4096, device="sim").data_ptr() != address


def test_streams_have_the_drivers_handles() -> None:
    stream: Any = torch.Stream("sim:1")
    assert torch.accelerator.current_stream("sim:1").native_handle == 0
    with stream:
        assert torch.accelerator.current_stream("sim:1").native_handle == stream.native_handle != 0


def test_no_context_is_made_on_a_device_that_is_not_used(sim: Simulator) -> None:
    before = list(sim.counters().contexts_made)
    torch.empty(4, device="sim:0")
    assert sim.counters().contexts_made[1] == before[1]


def test_running_out_of_memory_is_torchs_error(sim: Simulator) -> None:
    with pytest.raises(torch.OutOfMemoryError, match="^sim:0 out of memory"):
        torch.empty(2**40, device="sim")
    assert sim.allocated() == 0


def test_modules_learn_there() -> None:
    torch.manual_seed(1)
    module = torch.nn.Linear(4, 3)
    there = torch.nn.Linear(4, 3, device="meta").to_empty(device="sim")
    there.load_state_dict(module.state_dict())
    for each, device in ((module, "cpu"), (there, "sim")):
        optimizer = torch.optim.AdamW(each.parameters(), foreach=False)
        each(torch.ones(2, 4, device=device)).square().sum().backward()
        optimizer.step()
    assert torch.allclose(there.weight.cpu(), module.weight)
