"""Functions that another process is to call, by the file they stand in: nothing is pickled."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trajload.errors import ConfigError

__all__ = ["find_target", "target_of"]

_MODULE = "trajload_target"
"""Name under which a user's file runs in the other process: not `__main__`, so that its main part stays out."""


def target_of(function: Callable[..., Any]) -> dict[str, str]:
    """Return where another process finds a function.

    Raises:
        ConfigError: It is a lambda, stands inside another function, or in no file.
    """
    name = getattr(function, "__qualname__", "")
    if not callable(function) or not name or "<" in name:
        raise ConfigError(
            f"{function!r} cannot be found by another process: expected a function at the top level of a file."
        )
    module = sys.modules.get(function.__module__)
    file = getattr(module, "__file__", None)
    if function.__module__.startswith("trajload."):
        return {"module": function.__module__, "name": name}  # under its own name, so that classes are the same ones
    if file is None:
        raise ConfigError(f"{function!r} stands in no file: expected a function at the top level of a file.")
    return {"file": str(Path(file).resolve()), "name": name}


def find_target(target: Mapping[str, str]) -> Callable[..., Any]:
    """Return the function that `target_of` described."""
    if "module" in target:
        found: Any = importlib.import_module(target["module"])
    else:
        spec = importlib.util.spec_from_file_location(_MODULE, target["file"])
        assert spec is not None and spec.loader is not None
        found = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = found
        spec.loader.exec_module(found)
    for part in target["name"].split("."):
        found = getattr(found, part)
    function: Callable[..., Any] = found
    return function
