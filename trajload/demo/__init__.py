"""The demo: a generated dataset with known truth, a tiny world model, and the main job of trajload on both.

`generate` writes the dataset, `read_barcode` says which frame a picture is, `job.run` trains, kills, resumes and
compares. Names are loaded on first use, so that generating data imports no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_WHERE = {
    "EpisodeLength": "trajload.demo.scene",
    "generate": "trajload.demo.dataset",
    "read_barcode": "trajload.demo.barcode",
}

__all__ = ["EpisodeLength", "generate", "read_barcode"]

if TYPE_CHECKING:
    from trajload.demo.barcode import read_barcode as read_barcode
    from trajload.demo.dataset import generate as generate
    from trajload.demo.scene import EpisodeLength as EpisodeLength


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'trajload.demo' has no attribute {name!r}")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value
