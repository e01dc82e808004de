"""torch's random number generators: the CPU's, and those of devices that are in use."""

from __future__ import annotations

from typing import Any

import torch


def rng_state() -> dict[str, Any]:
    """ "torch" for the CPU, and "devices": of each kind, one state for each device."""
    devices: dict[str, list[torch.Tensor]] = {}
    for kind in ("cuda", "xpu"):
        module: Any = getattr(torch, kind, None)
        if module is not None and module.is_available() and module.is_initialized():
            devices[kind] = list(module.get_rng_state_all())
    if torch.backends.mps.is_available():
        devices["mps"] = [torch.mps.get_rng_state()]
    return {"torch": torch.get_rng_state(), "devices": devices}


def set_rng_state(state: dict[str, Any]) -> None:
    """The same, backwards."""
    torch.set_rng_state(state["torch"].cpu())
    for kind, states in state.get("devices", {}).items():
        module: Any = getattr(torch, kind, None)
        if module is None or not module.is_available():
            continue
        if kind == "mps":
            module.set_rng_state(states[0].cpu())
            continue
        for number, each in enumerate(states[: module.device_count()]):
            module.set_rng_state(each.cpu(), number)
