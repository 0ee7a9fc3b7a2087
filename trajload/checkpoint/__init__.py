"""Checkpoints that cannot lie: whole training states, published at once, digested, and given back only whole.

Names are loaded on first use: the store itself needs neither torch nor NumPy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_WHERE = {
    "Commit": "trajload.checkpoint.entries",
    "Disk": "trajload.checkpoint.disk",
    "Fault": "trajload.checkpoint.entries",
    "FileEntry": "trajload.checkpoint.entries",
    "Generation": "trajload.checkpoint.generation",
    "Keep": "trajload.checkpoint.entries",
    "ObjectStore": "trajload.checkpoint.object_store",
    "PartReader": "trajload.checkpoint.reader",
    "PartSummary": "trajload.checkpoint.entries",
    "PartWriter": "trajload.checkpoint.generation",
    "Store": "trajload.checkpoint.store",
}

__all__ = sorted(_WHERE)

if TYPE_CHECKING:
    from trajload.checkpoint.disk import Disk as Disk
    from trajload.checkpoint.entries import Commit as Commit
    from trajload.checkpoint.entries import Fault as Fault
    from trajload.checkpoint.entries import FileEntry as FileEntry
    from trajload.checkpoint.entries import Keep as Keep
    from trajload.checkpoint.entries import PartSummary as PartSummary
    from trajload.checkpoint.generation import Generation as Generation
    from trajload.checkpoint.generation import PartWriter as PartWriter
    from trajload.checkpoint.object_store import ObjectStore as ObjectStore
    from trajload.checkpoint.reader import PartReader as PartReader
    from trajload.checkpoint.store import Store as Store


def __getattr__(name: str) -> Any:
    where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module 'trajload.checkpoint' has no attribute {name!r}")
    value = getattr(importlib.import_module(where), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
