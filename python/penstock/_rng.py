"""The state of random number generators: Python's, NumPy's and torch's."""

from __future__ import annotations

import random
import sys
from typing import Any

from ._types import RngState
from .errors import ArgumentError


def rng_state() -> RngState:
    """The state of this process's random number generators, as a tree that `save` takes as a torch file.

    "python" is that of the `random` module, "numpy" that of `numpy.random`'s global functions, "torch" torch's on the
    CPU, and "devices" has those of all devices of each kind that is in use ("cuda", "xpu", "mps"). Libraries that
    nobody has imported are left out. Generators that a program made itself are its own to save.
    """
    state: RngState = {"python": random.getstate()}
    if "numpy" in sys.modules:
        state["numpy"] = numpy_rng_state()
    if "torch" in sys.modules:
        from ._torch.random import rng_state as torch_state

        state.update(torch_state())
    return state


def set_rng_state(state: RngState) -> None:
    """Puts the generators into a state that `rng_state` gave; those that it has nothing of stay as they are.

    Devices that this machine does not have are passed over.
    """
    if not isinstance(state, dict) or "python" not in state:
        raise ArgumentError(f"expected what rng_state() gives, not {type(state).__name__}")
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    if "numpy" in state:
        from ._numpy import set_rng_state as set_numpy_state

        set_numpy_state(state["numpy"])
    if "torch" in state:
        from ._torch.random import set_rng_state as set_torch_state

        set_torch_state(state)


def numpy_rng_state() -> tuple[Any, ...]:
    """The state of the generator behind `numpy.random`'s functions."""
    from ._numpy import rng_state as numpy_state

    return numpy_state()


class Rng:
    """The random number generators of this process, to be saved and restored as models and optimizers are.

    state = {"model": model, "optimizer": optimizer, "rng": penstock.Rng()}
    manager.restore(into=state)
    """

    def state_dict(self) -> RngState:
        """What `rng_state` gives."""
        return rng_state()

    def load_state_dict(self, state: RngState) -> None:
        """What `set_rng_state` does."""
        set_rng_state(state)
