"""The tensors of a file in place of those of a model: all of them, or on any failure none."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch.nn.parameter import is_lazy

from ..errors import ArgumentError
from ._cast import EXTRA_STATE
from ._read import StoredTensor
from .utils import human_num_elements, timer

_NAMES_IN_A_MESSAGE = 5


class Source(Protocol):
    """A file, open or read."""

    def tensors(self) -> list[StoredTensor]: ...

    def load(self, names: list[str]) -> Mapping[str, torch.Tensor]: ...


class Rules(NamedTuple):
    """What may be missing and what is left alone."""

    strict_params: bool
    strict_buffers: bool
    coerce_dtype: bool
    is_ignored: Callable[[str], bool]

    @property
    def is_strict(self) -> bool:
        """Whether anything that is left over or does not fit is an error."""
        return self.strict_params or self.strict_buffers


class Slot(NamedTuple):
    """A parameter or buffer of a model."""

    module: torch.nn.Module
    attribute: str
    value: torch.Tensor

    @property
    def is_parameter(self) -> bool:
        return isinstance(self.value, torch.nn.Parameter)


class Match(NamedTuple):
    """Which tensor of the file goes where, and what is left."""

    sources: dict[str, list[str]]  # by name in the file: the names in the model, of which tied ones have one source
    copies: dict[str, list[str]]  # by such a name: the others under which the file has the same tensor again
    states: list[str]  # extra states of modules
    unexpected: list[str]
    missing: list[str]
    mismatches: list[str]  # as sentences


def assign(model: torch.nn.Module, source: Source, path: str, rules: Rules, silent: bool) -> None:
    """Replaces the model's tensors by the file's. Names, shapes and types are checked first, then all is read."""
    with timer("build_lookups", silent):
        slots = find_slots(model)
        states = extra_states(model)
        match = match_names(slots, source.tensors(), rules, states)
        missing_params = [name for name in match.missing if slots[name].is_parameter]
        missing_buffers = [name for name in match.missing if not slots[name].is_parameter]
        if (missing_buffers or states) and (rules.strict_buffers or not silent):
            saved = model.state_dict()
            missing_buffers = [name for name in missing_buffers if name in saved]  # others are never in a file
            missing_buffers += [name for name in states if name not in match.states and not rules.is_ignored(name)]
        _check(model, path, match, missing_params, missing_buffers, rules)
    with timer("read_payload", silent):
        loaded = source.load([*match.sources, *match.states])
        if rules.is_strict:
            _check_copies(model, path, match, source, loaded)
    with timer("assign", silent):
        replacements = list(_replacements(slots, match.sources, loaded))
        _replace(replacements, [(states[name], loaded[name]) for name in match.states])
    if match.mismatches:
        warnings.warn(f"{path}: left out what does not fit: {listed(match.mismatches)}", stacklevel=3)
    if not silent:
        _report(match, missing_params, missing_buffers, loaded, [slot for slot, _ in replacements])


def find_slots(model: torch.nn.Module) -> dict[str, Slot]:
    """The model's parameters and buffers by name; tied ones under every name that they have."""
    slots: dict[str, Slot] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for find in (module.named_parameters, module.named_buffers):
            for attribute, value in find(recurse=False, remove_duplicate=False):
                slots[f"{prefix}.{attribute}" if prefix else attribute] = Slot(module, attribute, value)
    return slots


def extra_states(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The modules that take an extra state back, by the name that it has in a state dict."""
    taking = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        if type(module).set_extra_state is not torch.nn.Module.set_extra_state:
            taking[f"{prefix}.{EXTRA_STATE}" if prefix else EXTRA_STATE] = module
    return taking


def match_names(
    slots: Mapping[str, Slot], tensors: list[StoredTensor], rules: Rules, states: Mapping[str, Any]
) -> Match:
    """Compares the file's tensors with the model's."""
    wanted = {tensor.name: tensor for tensor in tensors if not rules.is_ignored(tensor.name)}
    found_states = [name for name in wanted if name in states]
    match = Match({}, {}, found_states, [name for name in wanted if name not in slots and name not in states], [], [])
    for tied in _ties(slots).values():
        found = [name for name in tied if name in wanted]
        problems = [text for name in found if (text := _mismatch(wanted[name], slots[name].value, rules))]
        if problems:
            match.mismatches.extend(problems)
        elif found:
            match.sources[found[0]] = tied
            match.copies[found[0]] = found[1:]
        else:
            match.missing.extend(name for name in tied if not rules.is_ignored(name))
    return match


def _ties(slots: Mapping[str, Slot]) -> dict[Any, list[str]]:
    """The names of each tensor: the same object, or another one of the same memory."""
    groups: dict[Any, list[str]] = {}
    for name, slot in slots.items():
        groups.setdefault(_identity(slot.value), []).append(name)
    return groups


def _identity(value: torch.Tensor) -> Any:
    if value.is_meta or is_lazy(value) or value.layout is not torch.strided:
        return id(value)
    try:
        pointer = value.data_ptr()
    except RuntimeError:  # It only wraps other tensors.
        pointer = 0
    return (value.device, pointer, value.shape, value.stride(), value.dtype) if pointer else id(value)


def _mismatch(tensor: StoredTensor, value: torch.Tensor, rules: Rules) -> str | None:
    """Why a tensor can't take the place of this one.

    Parameters may change their type, but not from one kind to another.
    """
    if not is_lazy(value) and tensor.shape != tuple(value.shape):
        return f"{tensor.name} has shape {list(tensor.shape)} in the file and {list(value.shape)} in the model"
    if rules.coerce_dtype or tensor.dtype == value.dtype:
        return None
    if isinstance(value, torch.nn.Parameter) and _kind(tensor.dtype) == _kind(value.dtype):
        return None
    kind = "parameter" if isinstance(value, torch.nn.Parameter) else "buffer"
    return (
        f"dtype mismatch for {kind} '{tensor.name}': {_short(tensor.dtype)} in the file and {_short(value.dtype)} "
        "in the model (coerce_dtype=True converts it)"
    )


def _kind(dtype: torch.dtype) -> tuple[bool, bool, bool]:
    """Types of one kind can stand in for each other."""
    return dtype.is_floating_point, dtype.is_complex, dtype == torch.bool


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check(
    model: torch.nn.Module,
    path: str,
    match: Match,
    missing_params: list[str],
    missing_buffers: list[str],
    rules: Rules,
) -> None:
    problems = []
    missing = {
        "parameters": missing_params if rules.strict_params else [],
        "buffers": missing_buffers if rules.strict_buffers else [],
    }
    if any(missing.values()):
        counts = " and ".join(f"{len(names)} {kind}" for kind, names in missing.items() if names)
        problems.append(f"Missing {counts}: {listed(missing['parameters'] + missing['buffers'])}")
    if rules.is_strict and match.unexpected:
        problems.append(
            f"Could not assign {len(match.unexpected)} names: {listed(match.unexpected)} (not in the model)"
        )
    if rules.is_strict and match.mismatches:
        problems.append(listed(match.mismatches))
    if problems:
        raise ArgumentError(f"{path} does not fit {type(model).__name__}: {'; '.join(problems)}")


def _check_copies(
    model: torch.nn.Module, path: str, match: Match, source: Source, loaded: Mapping[str, torch.Tensor]
) -> None:
    """What is one tensor in the model and several in the file must be the same there. One is read at a time."""
    for first, others in match.copies.items():
        for other in others:
            if not _same_bits(loaded[first], source.load([other])[other]):
                raise ArgumentError(
                    f"{path} does not fit {type(model).__name__}: {first} and {other} are tied in the model and differ "
                    "in the file (strict=False takes the first)"
                )


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype:
        return False
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


def listed(names: list[str]) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(names[:_NAMES_IN_A_MESSAGE])
    more = len(names) - _NAMES_IN_A_MESSAGE
    return f"{shown} and {more} more" if more > 0 else shown


def _replacements(
    slots: Mapping[str, Slot], sources: Mapping[str, list[str]], loaded: Mapping[str, torch.Tensor]
) -> Iterator[tuple[Slot, torch.Tensor]]:
    """What goes where. What was one object under several names stays one."""
    for source, names in sources.items():
        made: dict[int, torch.Tensor] = {}
        for name in names:
            slot = slots[name]
            if id(slot.value) not in made:
                made[id(slot.value)] = _replacement(slot, loaded[source])
            yield slot, made[id(slot.value)]


def _replacement(slot: Slot, tensor: torch.Tensor) -> torch.Tensor:
    old = slot.value
    if not slot.is_parameter:
        return tensor.to(old.dtype)  # Another type has passed the check, so it is to be coerced.
    if _kind(tensor.dtype) != _kind(old.dtype):
        tensor = tensor.to(old.dtype)
    return torch.nn.Parameter(tensor, requires_grad=old.requires_grad)


def _replace(replacements: list[tuple[Slot, torch.Tensor]], states: list[tuple[torch.nn.Module, torch.Tensor]]) -> None:
    """Sets all of them; when a module objects, everything is put back."""
    old_states = [(module, module.get_extra_state()) for module, _ in states]
    done: list[Slot] = []
    try:
        for slot, tensor in replacements:
            done.append(slot)
            setattr(slot.module, slot.attribute, tensor)
        for module, state in states:
            module.set_extra_state(state)
    except BaseException:
        for slot in reversed(done):
            setattr(slot.module, slot.attribute, slot.value)
        for module, state in old_states:
            module.set_extra_state(state)
        raise


def _report(
    match: Match,
    missing_params: list[str],
    missing_buffers: list[str],
    loaded: Mapping[str, torch.Tensor],
    assigned: list[Slot],
) -> None:
    if missing_params:
        print(f"Not in the file: {len(missing_params)} parameters: {listed(missing_params)}")
    if missing_buffers:
        print(f"Not in the file: {len(missing_buffers)} buffers: {listed(missing_buffers)}")
    if match.unexpected:
        print(f"Not in the model: {len(match.unexpected)} names: {listed(match.unexpected)}")
    elements = sum(tensor.numel() for tensor in loaded.values())
    parameters = sum(slot.is_parameter for slot in assigned)
    print(
        f"Assigned {human_num_elements(elements)} elements to {parameters} parameters and "
        f"{len(assigned) - parameters} buffers"
    )
