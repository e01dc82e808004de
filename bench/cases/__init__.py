"""What is raced. One small module per library; adding a peer is adding a module to FAMILIES.

A family's CASES say how each of its ways to load or save is measured. The modules are imported by the driver, which has
only the standard library: what a case needs it imports inside its `start`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

FAMILIES = (
    "fio",
    "drive_cases",
    "safetensors_cases",
    "fastsafetensors_cases",
    "runai_cases",
    "tensorizer_cases",
    "distributed_checkpoint_cases",
    "flashpack_cases",
    "comparison_cases",
    "tiny_cases",
    "checkpoint_cases",
    "fastpersist_cases",
    "background_cases",
    "training_cases",
    "penstock_cases",
    "native_cases",
    "device_cases",
)
COLD, WARM, HALF = "cold", "warm", "half"  # what the page cache holds of the input when the clock starts


@dataclass(frozen=True)
class Race:
    """Cases that may be compared: the same tensors, the same start, the same work."""

    name: str
    key: str  # for the command line
    cache: str  # COLD, WARM or HALF
    input: str = "model"  # which of the inputs; see inputs.py
    saves: bool = False
    unit: str = "GiB/s"  # or "ms", where bytes mean little
    repeats: int = 1  # within a measurement, whose time is then their median: for what takes a millisecond
    gives_tensors: bool = True
    most_rounds: int = 99  # where a measurement takes long
    per_round: int = 1

    @property
    def touches(self) -> bool:
        """Whether every page of what was loaded is read before the clock stops."""
        return not self.saves and self.gives_tensors


COLD_LOAD = Race("cold load", "cold", COLD, per_round=2)  # judged to a few percent, on drives that vary by more
COLD_REUSED = Race("cold load, the second of its process", "cold-reused", COLD)
WARM_LOAD = Race("warm load", "warm", WARM)
HALF_LOAD = Race("load of a file that the page cache holds half of", "half", HALF)
SAVE = Race("durable save of a new file", "save", COLD, saves=True)
OPEN_MANY = Race(
    "open 100,000 tensors and list their names", "open", WARM, input="many", unit="ms", gives_tensors=False
)
LOAD_MANY = Race("load 100,000 small tensors", "many", WARM, input="many", unit="ms")
IMPORT = Race("import", "import", WARM, input="many", unit="ms", gives_tensors=False)
ENGINE_RACES = (COLD_LOAD, COLD_REUSED, WARM_LOAD, HALF_LOAD, SAVE, OPEN_MANY, LOAD_MANY, IMPORT)

PACK = Race("durable pack_to_file of a new file", "pack", COLD, saves=True)
ASSIGN_COLD = Race("cold assign_from_file", "assign", COLD)
ASSIGN_WARM = Race("warm assign_from_file", "assign-warm", WARM)
TINY_SAVE = Race(
    "durable save of three small tensors", "tiny-save", WARM, input="tiny", saves=True, unit="ms", repeats=21
)
TINY_LOAD = Race("load of three small tensors", "tiny-load", WARM, input="tiny", unit="ms", repeats=21)
FLASHPACK_RACES = (PACK, ASSIGN_COLD, ASSIGN_WARM, TINY_SAVE, TINY_LOAD)

# Files of torch.save.
TORCH_SAVE = Race("durable save of a new torch file", "torch-save", COLD, saves=True)
TORCH_COLD = Race("cold load of a torch file", "torch-cold", COLD)
TORCH_WARM = Race("warm load of a torch file", "torch-warm", WARM)
TORCH_MANY = Race(
    "load 20,000 tiny tensors of a torch file", "torch-many", WARM, input="many-torch", unit="ms", repeats=5
)
BLOCKED = Race("how long a background save blocks its caller", "async", COLD, saves=True, unit="ms")
TRAINING = Race("an iteration of a training loop", "train", COLD, saves=True, unit="ms", repeats=5, most_rounds=3)
TORCH_RACES = (TORCH_SAVE, TORCH_COLD, TORCH_WARM, TORCH_MANY, BLOCKED, TRAINING)

# Checkpoints of other shapes than one file of two hundred tensors. Fewer rounds keep the whole run below an hour.
SHAPE_ROUNDS = 3
SHARDS_COLD = Race("cold load of eight shards", "shards-cold", COLD, input="shards", most_rounds=SHAPE_ROUNDS)
SHARDS_WARM = Race("warm load of eight shards", "shards-warm", WARM, input="shards", most_rounds=SHAPE_ROUNDS)
MOE_COLD = Race("cold load of a mixture of experts", "moe-cold", COLD, input="moe", most_rounds=SHAPE_ROUNDS)
MOE_WARM = Race("warm load of a mixture of experts", "moe-warm", WARM, input="moe", most_rounds=SHAPE_ROUNDS)
SMALL_TENSORS_COLD = Race(
    "cold load of 20,000 tiny tensors", "20k-cold", COLD, input="many-torch", unit="ms", most_rounds=SHAPE_ROUNDS
)
SMALL_TENSORS_WARM = Race(
    "warm load of 20,000 tiny tensors", "20k-warm", WARM, input="many-torch", unit="ms", repeats=5
)
ONE_COLD = Race("cold load of one large tensor", "one-cold", COLD, input="one", most_rounds=SHAPE_ROUNDS)
ONE_WARM = Race("warm load of one large tensor", "one-warm", WARM, input="one", most_rounds=SHAPE_ROUNDS)
MIB_COLD = Race("cold load of a model of 1 MiB", "1mib-cold", COLD, input="mib", unit="ms")
MIB_WARM = Race("warm load of a model of 1 MiB", "1mib-warm", WARM, input="mib", unit="ms", repeats=21)
SHAPE_RACES = (
    *(SHARDS_COLD, SHARDS_WARM, MOE_COLD, MOE_WARM, SMALL_TENSORS_COLD, SMALL_TENSORS_WARM),
    *(ONE_COLD, ONE_WARM, MIB_COLD, MIB_WARM),
)

# For libraries that load any checkpoint in any state.
EVERY_LOAD = (COLD_LOAD, WARM_LOAD, HALF_LOAD, LOAD_MANY, *SHAPE_RACES)

RACES = (*ENGINE_RACES, *FLASHPACK_RACES, *TORCH_RACES, *SHAPE_RACES)
GROUPS = {"engine": ENGINE_RACES, "flashpack": FLASHPACK_RACES, "torch": TORCH_RACES, "shapes": SHAPE_RACES}

# How cost grows with the size and with the number of tensors; growth.py runs them at several of both.
GROW_LOAD = Race("cold load", "grow-load", COLD, input="grown")
GROW_SAVE = Race("durable save", "grow-save", COLD, input="grown", saves=True)
GROW_LOAD_COUNT = Race("warm load", "grow-load-count", WARM, input="grown", unit="ms", repeats=3)
GROW_SAVE_COUNT = Race("durable save", "grow-save-count", COLD, input="grown", saves=True, unit="ms")
GROW_LOADS, GROW_SAVES = (GROW_LOAD, GROW_LOAD_COUNT), (GROW_SAVE, GROW_SAVE_COUNT)
GROWTH_RACES = (*GROW_LOADS, *GROW_SAVES)

# The two comparisons that FlashPack publishes: run when they are asked for.
STATE_DICT = Race("GPT-2's weights into a model, warm", "state-dict", WARM, input="gpt2", unit="ms")
STATE_DICT_COLD = Race("GPT-2's weights into a model, cold", "state-dict-cold", COLD, input="gpt2", unit="ms")
MODEL_LOAD = Race("cold load into an empty model", "model-load", COLD)
MODEL_SAVE = Race("durable save of a model", "model-save", COLD, saves=True)
COMPARISONS = (STATE_DICT, STATE_DICT_COLD, MODEL_LOAD, MODEL_SAVE)
EXTRA_GROUPS = {"comparisons": COMPARISONS}

# Run by device_race.py alone.
DEVICE_LOAD = Race("cold load to a device", "device-load", COLD)
DEVICE_HOLD = Race(
    "how long save_async of tensors on a device holds its caller", "device-hold", COLD, saves=True, unit="ms"
)
BEFORE_RACES = {
    race.key: replace(race, key=f"before-{race.key}", per_round=1) for race in (COLD_LOAD, COLD_REUSED, WARM_LOAD, SAVE)
}


def races(*keys: str) -> tuple[Race, ...]:
    """Those with these keys, in this order."""
    known = {race.key: race for race in (*RACES, *GROWTH_RACES, *COMPARISONS)}
    return tuple(known[key] for key in keys)


@dataclass(frozen=True)
class Task:
    """What one measurement works on. Crosses to the measured process as JSON."""

    case: str
    file: str  # the checkpoint to load (a directory, if it has several files), or to have in memory before the save
    output: str = ""  # where a save goes; does not exist
    verify: bool = False  # checksum everything afterwards
    make_input_from: str = ""  # not a measurement: make `file` from this one
    read_back: bool = False  # nor this: print the checksum of what `file` holds


@dataclass(frozen=True)
class Unfinished:
    """What a timed function returns when it leaves something to be done, or checked, after the clock has stopped."""

    finish: Callable[[], Any]


# Does what must not be timed (imports, filling memory) and returns what is: a function that gives the tensors it
# loaded.
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
    saves_checked: bool = True  # is what a save wrote read back, and its checksum compared?
    read_back: Callable[[str], Any] | None = None  # gives the tensors of a format that only its library knows
    needs: str = ""  # a statement that fails where the case can't run; sys.argv[1] is the directory that is raced in
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
