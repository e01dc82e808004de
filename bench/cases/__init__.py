"""What is raced. One small module per library; adding a peer is adding a module to FAMILIES.

A family's CASES say how each of its ways to load or save is measured. The modules are imported by the driver, which has
only the standard library: what a case needs it imports inside its `start`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

FAMILIES = (
    "fio",
    "safetensors_cases",
    "fastsafetensors_cases",
    "torch_cases",
    "flashpack_cases",
    "comparison_cases",
    "tiny_cases",
    "checkpoint_cases",
    "fastpersist_cases",
    "background_cases",
    "training_cases",
    "penstock_cases",
    "native_cases",
)


@dataclass(frozen=True)
class Race:
    """Cases that may be compared: the same file, the same start, the same work."""

    name: str
    key: str  # for the command line
    warm: bool  # is the input in the page cache when the clock starts?
    input: str = "model"  # which file: the model, "many", "many-torch", "tiny" or "gpt2"; see model.py
    saves: bool = False
    unit: str = "GiB/s"  # or "ms", where bytes mean little
    repeats: int = 1  # within a measurement, whose time is then their median: for what takes a millisecond

    @property
    def touches(self) -> bool:
        """Whether every page of what was loaded is read before the clock stops."""
        return not self.saves and self.input not in ("many", "many-torch")


COLD_LOAD = Race("cold load", "cold", warm=False)
WARM_LOAD = Race("warm load", "warm", warm=True)
SAVE = Race("durable save of a new file", "save", warm=False, saves=True)
OPEN_MANY = Race("open 100,000 tensors and list their names", "open", warm=True, input="many", unit="ms")
LOAD_MANY = Race("load 100,000 small tensors", "many", warm=True, input="many", unit="ms")
IMPORT = Race("import", "import", warm=True, input="many", unit="ms")

PACK = Race("durable pack_to_file of a new file", "pack", warm=False, saves=True)
ASSIGN_COLD = Race("cold assign_from_file", "assign", warm=False)
ASSIGN_WARM = Race("warm assign_from_file", "assign-warm", warm=True)
TINY_SAVE = Race(
    "durable save of three small tensors", "tiny-save", warm=True, input="tiny", saves=True, unit="ms", repeats=21
)
TINY_LOAD = Race("load of three small tensors", "tiny-load", warm=True, input="tiny", unit="ms", repeats=21)

# Files of torch.save.
TORCH_SAVE = Race("durable save of a new torch file", "torch-save", warm=False, saves=True)
TORCH_COLD = Race("cold load of a torch file", "torch-cold", warm=False)
TORCH_WARM = Race("warm load of a torch file", "torch-warm", warm=True)
TORCH_MANY = Race(
    "load 20,000 tiny tensors of a torch file", "torch-many", warm=True, input="many-torch", unit="ms", repeats=5
)
BLOCKED = Race("how long a background save blocks its caller", "async", warm=False, saves=True, unit="ms")
TRAINING = Race("an iteration of a training loop", "train", warm=False, saves=True, unit="ms", repeats=5)

RACES = (
    *(COLD_LOAD, WARM_LOAD, SAVE, OPEN_MANY, LOAD_MANY, IMPORT),
    *(PACK, ASSIGN_COLD, ASSIGN_WARM, TINY_SAVE, TINY_LOAD),
    *(TORCH_SAVE, TORCH_COLD, TORCH_WARM, TORCH_MANY, BLOCKED, TRAINING),
)

# The two comparisons that FlashPack publishes; flashpack_compare.py runs them.
STATE_DICT = Race("GPT-2's weights into a model, warm", "state-dict", warm=True, input="gpt2", unit="ms")
STATE_DICT_COLD = Race("GPT-2's weights into a model, cold", "state-dict-cold", warm=False, input="gpt2", unit="ms")
MODEL_LOAD = Race("cold load into an empty model", "model-load", warm=False)
MODEL_SAVE = Race("durable save of a model", "model-save", warm=False, saves=True)
COMPARISONS = (STATE_DICT, STATE_DICT_COLD, MODEL_LOAD, MODEL_SAVE)


@dataclass(frozen=True)
class Task:
    """What one measurement works on. Crosses to the measured process as JSON."""

    case: str
    file: str  # the checkpoint to load, or to have in memory before the save
    output: str = ""  # where a save goes; does not exist
    verify: bool = False  # checksum everything afterwards
    make_input_from: str = ""  # not a measurement: make `file` from this one


@dataclass(frozen=True)
class Unfinished:
    """What a timed function returns when it leaves something to be done, or checked, after the clock has stopped."""

    finish: Callable[[], Any]


# Does what must not be timed (imports, filling memory) and returns what is: a function that gives the tensors it loaded.
Start = Callable[[Task], Callable[[], Any]]


@dataclass(frozen=True)
class Case:
    """One competitor in one race. Exactly one of `start`, `native` and `external` says how it runs."""

    name: str
    race: Race
    role: str  # "ceiling", "peer" or "ours"
    start: Start | None = None  # in a fresh Python process, of the peers' environment unless the role is "ours"
    native: Callable[[Task], list[str]] | None = None  # a program that speaks the protocol of measure.py
    external: Callable[[Task, str], dict[str, float]] | None = None  # measures itself; given the Python to use
    input_suffix: str = ".safetensors"  # loads of another format name it, and how its file is made from the model
    make_input: Callable[[str, str], None] | None = None
    output_suffix: str = ".safetensors"
    saves_checked: bool = True  # is what a save wrote in a format that is read back here?
    needs: str = ""  # a module without which the case is left out: what can't be installed everywhere
    in_default_race: bool = True

    @property
    def key(self) -> str:
        return f"{self.race.key}: {self.name}"

    @property
    def runs_by_default(self) -> bool:
        return self.in_default_race and self.race in RACES


def all_cases() -> list[Case]:
    return [case for family in FAMILIES for case in importlib.import_module(f"cases.{family}").CASES]


def find_case(key: str) -> Case:
    return next(case for case in all_cases() if case.key == key)
