"""What a loader is asked for, and what it answers with: the one interface between the runner and every rival.

A rival is a module with `batches(request, **variant)`, which yields batches without end. A batch is a dict from camera
or signal name to an array or tensor: pictures (B, T, C, H, W), or (B, T, H, W, C) where the loader gives that, uint8 or
floats in [0, 1]; signals (B, T, D). Which windows it holds is not said: the check reads it from the barcodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workloads.spec import Workload

Batch = dict[str, Any]
Batches = Iterator[Batch]


@dataclass(frozen=True, kw_only=True)
class Request:
    workload: Workload
    data: Path
    """The folder with all data sets."""
    seconds: float = 10.0
    """How long will be measured; most loaders need not know."""
    workers: int = 2
    seed: int = 7
    loader: Mapping[str, Any] = field(default_factory=dict)
    """Further keyword arguments for `trajload.Loader`."""
