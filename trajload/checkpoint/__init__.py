"""Checkpoints that cannot lie: whole training states, published at once, digested, and given back only whole.

Names are loaded on first use: the store itself needs neither torch nor NumPy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_WHERE = {
    "Checkpointer": "trajload.checkpoint.checkpointer",
    "Commit": "trajload.checkpoint.entries",
    "Component": "trajload.checkpoint.components",
    "Continuation": "trajload.checkpoint.continues",
    "Disk": "trajload.checkpoint.disk",
    "Every": "trajload.checkpoint.every",
    "Fault": "trajload.checkpoint.entries",
    "FileEntry": "trajload.checkpoint.entries",
    "Generation": "trajload.checkpoint.generation",
    "Keep": "trajload.checkpoint.entries",
    "ObjectStore": "trajload.checkpoint.object_store",
    "PartReader": "trajload.checkpoint.reader",
    "PartSummary": "trajload.checkpoint.entries",
    "PartWriter": "trajload.checkpoint.generation",
    "Report": "trajload.checkpoint.report",
    "Saved": "trajload.checkpoint.saving",
    "Store": "trajload.checkpoint.store",
    "Streams": "trajload.checkpoint.streams",
    "Training": "trajload.checkpoint.trainee",
    "assert_continues": "trajload.checkpoint.continues",
    "audit": "trajload.checkpoint.auditing",
    "episodes_seen": "trajload.checkpoint.exposure",
    "export": "trajload.checkpoint.exporting",
    "open": "trajload.checkpoint.opening",
    "plan_size": "trajload.checkpoint.size",
    "restore": "trajload.checkpoint.restoring",
    "snapshot": "trajload.checkpoint.capture",
    "trial_folder": "trajload.checkpoint.folders",
    "upload": "trajload.checkpoint.hub",
}

__all__ = sorted(_WHERE)

if TYPE_CHECKING:
    from trajload.checkpoint.auditing import audit as audit
    from trajload.checkpoint.capture import snapshot as snapshot
    from trajload.checkpoint.checkpointer import Checkpointer as Checkpointer
    from trajload.checkpoint.components import Component as Component
    from trajload.checkpoint.continues import Continuation as Continuation
    from trajload.checkpoint.continues import assert_continues as assert_continues
    from trajload.checkpoint.disk import Disk as Disk
    from trajload.checkpoint.entries import Commit as Commit
    from trajload.checkpoint.entries import Fault as Fault
    from trajload.checkpoint.entries import FileEntry as FileEntry
    from trajload.checkpoint.entries import Keep as Keep
    from trajload.checkpoint.entries import PartSummary as PartSummary
    from trajload.checkpoint.every import Every as Every
    from trajload.checkpoint.exporting import export as export
    from trajload.checkpoint.exposure import episodes_seen as episodes_seen
    from trajload.checkpoint.folders import trial_folder as trial_folder
    from trajload.checkpoint.generation import Generation as Generation
    from trajload.checkpoint.generation import PartWriter as PartWriter
    from trajload.checkpoint.hub import upload as upload
    from trajload.checkpoint.object_store import ObjectStore as ObjectStore
    from trajload.checkpoint.opening import open as open
    from trajload.checkpoint.reader import PartReader as PartReader
    from trajload.checkpoint.report import Report as Report
    from trajload.checkpoint.restoring import restore as restore
    from trajload.checkpoint.saving import Saved as Saved
    from trajload.checkpoint.size import plan_size as plan_size
    from trajload.checkpoint.store import Store as Store
    from trajload.checkpoint.streams import Streams as Streams
    from trajload.checkpoint.trainee import Training as Training


def __getattr__(name: str) -> Any:
    where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module 'trajload.checkpoint' has no attribute {name!r}")
    value = getattr(importlib.import_module(where), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
