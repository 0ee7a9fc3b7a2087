"""What a transform is, what it may change, and how a saved state names it."""

# Shapes: T steps

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from trajload.errors import ConfigError

__all__ = ["Layout", "Transform", "WindowDict", "config_of", "name_of"]

WindowDict: TypeAlias = "dict[str, Any]"
"""One window: each picture or signal stream as an array (T, ...), each text stream as its value, and the masks
`<stream>_is_pad` (T,) bool and `<stream>_is_missing` bool. T is the stream's own. Ages and streams asked for with
align="interval" are not there: they pass by transforms."""

Transform: TypeAlias = Callable[[WindowDict, np.random.Generator], WindowDict]
"""Takes a window and a generator of its own, returns the window. May write into the arrays it is given.

Shapes and dtypes stay as they are, unless the transform carries `out_layout(layout) -> layout`. Steps may be marked as
padding, never the other way round: a transform does not invent data. Steps that are zeros since there are no data
come out as zeros, whatever the transform writes there.

More that a transform may carry: `bind(specs) -> transform`, called once with the loader's streams, and
`config_json() -> dict`, what a saved state compares.
"""

Layout: TypeAlias = Mapping[str, tuple[tuple[int, ...], "np.dtype[Any]"]]
"""For each picture and signal stream: shape of one step, and dtype."""

_PACKAGE = "trajload.augment."


def name_of(transform: Any) -> str:
    """Return the name a transform has in messages and states: 'RandomCrop', or 'my_package.my_module:my_function'.

    What the started script defines is of `__main__`, in the processes that it spawns too, where Python runs it as `__mp_main__`.
    """
    if isinstance(transform, functools.partial):
        return name_of(transform.func)
    what = transform if hasattr(transform, "__qualname__") else type(transform)
    module = str(getattr(what, "__module__", "?"))
    module = "__main__" if module == "__mp_main__" else module
    return str(what.__qualname__) if module.startswith(_PACKAGE) else f"{module}:{what.__qualname__}"


def config_of(transform: Any) -> dict[str, Any]:
    """Return what a saved state compares: the name, and the arguments as JSON-able values.

    Raises:
        ConfigError: Two such transforms could differ and look the same in a state: lambdas, functions that capture
            variables, methods, objects that are no dataclass.
    """
    name = name_of(transform)
    own = getattr(transform, "config_json", None)
    if callable(own):
        arguments = dict(own())
    elif isinstance(transform, functools.partial):
        inner = config_of(transform.func)
        arguments = {**inner, "args": list(transform.args), "keywords": dict(transform.keywords)}
    elif dataclasses.is_dataclass(transform) and not isinstance(transform, type):
        arguments = dataclasses.asdict(transform)
    elif inspect.isfunction(transform):
        _check_function(transform, name)
        arguments = {}
    elif inspect.isbuiltin(transform):
        arguments = {}
    else:
        raise ConfigError(
            f"transform {name!r} cannot be named in a saved state: got {type(transform).__name__}, whose values are not "
            "known. Expected a function, a functools.partial, a frozen dataclass, or an object with config_json()."
        )
    try:
        plain: dict[str, Any] = json.loads(json.dumps({"name": name, **arguments}, allow_nan=False))
    except (TypeError, ValueError) as err:
        raise ConfigError(
            f"arguments of transform {name!r} are not JSON-able: {err}. Use numbers, strings and lists, or give the "
            "transform config_json()."
        ) from err
    return plain


def _check_function(function: Any, name: str) -> None:
    if function.__name__ == "<lambda>":
        raise ConfigError(
            f"transform {name!r} is a lambda, which a saved state cannot name. Define it with def, at the top of a module."
        )
    captured = function.__code__.co_freevars
    if captured:
        raise ConfigError(
            f"transform {name!r} captures {', '.join(map(repr, captured))}, whose values a saved state would not notice to "
            "differ. Pass them with functools.partial, or write a frozen dataclass with __call__."
        )
