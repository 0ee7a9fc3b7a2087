"""Modules of tests, benchmarks and examples, which belong to no package and are loaded by their path."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

__all__ = ["load"]


def load(path: Path, *, name: str | None = None, importable: bool = False) -> ModuleType:
    """Return the file at `path` as a new module.

    Args:
        path: Of the file.
        name: Of the module; by default that of the file.
        importable: Whether it can be imported by its name from now on, as what is sent to another process must be.
    """
    spec = importlib.util.spec_from_file_location(name or path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if importable:
        sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
