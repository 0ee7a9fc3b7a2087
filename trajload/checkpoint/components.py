"""The kinds of things a checkpoint keeps: how the state of each is taken, and what is said of it beside the state.

| kind | what | how it comes back |
|---|---|---|
| `module` | `torch.nn.Module` | `load_state_dict`, after names, shapes and dtypes have been compared |
| `optimizer` | `torch.optim.Optimizer` | `load_state_dict`, after parameters have been compared; dtypes of moments as saved |
| `stateful` | anything with `state_dict` and `load_state_dict`: schedulers, scalers, loaders, `Streams` | its own `load_state_dict` |
| `callable` | `Component(get, set)` | `set` |
| `tree` | a tensor, array, dict, list, deque or set of plain values | in place: who holds it sees the saved values |
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from trajload.arguments import explains_calls
from trajload.checkpoint.tensor_file import TensorFacts
from trajload.errors import CheckpointError, ConfigError, TrajloadError, described

__all__ = ["RESERVED", "Component", "about", "check_names", "kind_of", "parameter_names", "take", "type_name"]

_IN_PLACE = (Tensor, np.ndarray, dict, list, deque, set, bytearray, OrderedDict, defaultdict, Counter)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
RESERVED = ("part", "dcp", "sharded")
"""Names of the store's own files and folders beside those of components."""


@explains_calls
@dataclass(frozen=True, slots=True)
class Component:
    """State that is read and written by two functions.

    `get` returns any tree of plain values, tensors and arrays; `set` is given an equal one, whose tensors are on the CPU and
    its own. `check`, if given, is called first with the same tree and raises where it does not fit; it changes nothing.

    Example:
        >>> counters = {"updates": 0}
        >>> part = Component(lambda: counters["updates"], lambda saved: counters.update(updates=saved))
    """

    get: Callable[[], Any]
    set: Callable[[Any], None]
    check: Callable[[Any], None] | None = None


def check_names(state: Mapping[str, Any]) -> None:
    """Raise ConfigError where a component has a name that cannot be a file's, or is of no kind that can be kept."""
    if not isinstance(state, Mapping):
        raise ConfigError(f"state is a {type(state).__name__}: expected a mapping of names to what is saved.")
    lower: dict[str, str] = {}
    for name, value in state.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name.lower() in RESERVED:
            raise ConfigError(
                f"component name {name!r} is invalid: expected ASCII letters, digits, '_', '-' and '.', at most 100, and none of "
                f"{', '.join(map(repr, RESERVED))}."
            )
        if (other := lower.setdefault(name.lower(), name)) != name:
            raise ConfigError(
                f"components {other!r} and {name!r} differ in case only: some file systems make them one."
            )
        kind_of(name, value)


def kind_of(name: str, value: Any) -> str:
    """Return the kind of a component.

    Raises:
        ConfigError: It is of none: what is saved could not be put back.
    """
    if isinstance(value, Component):
        return "callable"
    if isinstance(value, torch.nn.Module):
        return "module"
    if isinstance(value, torch.optim.Optimizer):
        return "optimizer"
    if isinstance(value, type):
        raise ConfigError(f"component {name!r} is the class {value.__qualname__}: expected an object of it.")
    if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
        return "stateful"
    if isinstance(value, _IN_PLACE):
        return "tree"
    kind = type(value).__qualname__
    if isinstance(value, (np.random.Generator, np.random.RandomState, torch.Generator)):
        cure = f"Give it to the streams: rng=Streams({name}=...)."
    elif value is None or isinstance(value, (bool, int, float, str, bytes, tuple, frozenset, complex, np.generic)):
        cure = "A value of this kind cannot be changed in place: use Component(get, set), or a dict that holds it."
    else:
        cure = "Give it state_dict() and load_state_dict(), or use Component(get, set)."
    raise ConfigError(f"component {name!r} is a {kind}, which could be saved but not be put back. {cure}")


def take(name: str, value: Any) -> Any:
    """Return the state of a component, as it lives: tensors are not copied.

    Raises:
        CheckpointError: Its own code raised; the message names the component.
    """
    kind = kind_of(name, value)
    if kind == "tree":
        return value
    try:
        return value.get() if kind == "callable" else value.state_dict()
    except TrajloadError:
        raise
    except Exception as err:
        call = "get()" if kind == "callable" else "state_dict()"
        raise CheckpointError(
            f"component {name!r} gave no state: {call} of {type_name(value)} raised {described(err)}"
        ) from err


def type_name(value: Any) -> str:
    """Return 'torch.optim.adamw.AdamW' of an AdamW."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def parameter_names(state: Mapping[str, Any]) -> dict[int, str]:
    """Return {id(parameter): 'component.name'} of all modules among the components; of tied ones the first name."""
    names: dict[int, str] = {}
    for component, value in state.items():
        if isinstance(value, torch.nn.Module):
            for name, parameter in value.named_parameters():
                names.setdefault(id(parameter), f"{component}.{name}")
    return names


def about(name: str, value: Any, names: Mapping[int, str]) -> dict[str, Any]:
    """Return what stands beside the state of a component: kind, class, and of optimisers the parameters in their order."""
    told: dict[str, Any] = {"kind": kind_of(name, value), "type": type_name(value)}
    if isinstance(value, torch.optim.Optimizer):
        told["parameters"] = [[[names.get(id(p)), *_facts(p)] for p in group["params"]] for group in value.param_groups]
    return told


def _facts(parameter: Tensor) -> tuple[str, list[int] | None]:
    if isinstance(parameter, UninitializedTensorMixin):
        return str(parameter.dtype).removeprefix("torch."), None
    facts = TensorFacts.of(parameter)
    return facts.dtype, list(facts.shape)
