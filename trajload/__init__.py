"""trajload: exact, fast, multimodal windows of recorded trajectories for world models and robot policies.

    >>> import trajload as tl
    >>> dataset = tl.open("my-dataset")                                     # doctest: +SKIP
    >>> loader = tl.Loader(dataset, window=tl.Window(num_steps=16), global_batch_size=32, seed=7)  # doctest: +SKIP
    >>> for batch in loader: ...                                            # doctest: +SKIP

Names are loaded on first use (PEP 562): importing trajload imports neither torch nor PyAV.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_WHERE = {
    "ActionNoise": "trajload.augment.steps",
    "Batch": "trajload.collate.batch",
    "Checkpointer": "trajload.checkpoint.checkpointer",
    "ColorJitter": "trajload.augment.colour",
    "Continuous": "trajload.sampling.orders",
    "CostTable": "trajload.costs.table",
    "Dataset": "trajload.sources.base",
    "Every": "trajload.checkpoint.every",
    "FrameDrop": "trajload.augment.steps",
    "GaussianBlur": "trajload.augment.colour",
    "Image": "trajload.spec",
    "Interleaved": "trajload.sampling.orders",
    "Keep": "trajload.checkpoint.entries",
    "Loader": "trajload.loader",
    "Mixture": "trajload.sampling.mixture_sources",
    "Modality": "trajload.types",
    "Normalizer": "trajload.augment.normalizer",
    "RandomCrop": "trajload.augment.geometry",
    "RandomFlip": "trajload.augment.geometry",
    "Resize": "trajload.augment.geometry",
    "Signal": "trajload.spec",
    "Source": "trajload.sampling.mixture_sources",
    "StreamSpec": "trajload.spec",
    "Streams": "trajload.checkpoint.streams",
    "TrajloadError": "trajload.errors",
    "Weighted": "trajload.sampling.orders",
    "Window": "trajload.spec",
    "WindowRef": "trajload.refs",
    "World": "trajload.world",
    "Writer": "trajload.shards.writer",
    "checkpoint": "trajload",
    "errors": "trajload",
    "open": "trajload.sources.open",
    "split": "trajload.sampling.select",
    "verify": "trajload.shards.verify",
}

__all__ = ["__version__", *sorted(_WHERE)]

if TYPE_CHECKING:
    from trajload import checkpoint as checkpoint
    from trajload import errors as errors
    from trajload.augment.colour import ColorJitter as ColorJitter
    from trajload.augment.colour import GaussianBlur as GaussianBlur
    from trajload.augment.geometry import RandomCrop as RandomCrop
    from trajload.augment.geometry import RandomFlip as RandomFlip
    from trajload.augment.geometry import Resize as Resize
    from trajload.augment.normalizer import Normalizer as Normalizer
    from trajload.augment.steps import ActionNoise as ActionNoise
    from trajload.augment.steps import FrameDrop as FrameDrop
    from trajload.checkpoint.checkpointer import Checkpointer as Checkpointer
    from trajload.checkpoint.entries import Keep as Keep
    from trajload.checkpoint.every import Every as Every
    from trajload.checkpoint.streams import Streams as Streams
    from trajload.collate.batch import Batch as Batch
    from trajload.costs.table import CostTable as CostTable
    from trajload.errors import TrajloadError as TrajloadError
    from trajload.loader import Loader as Loader
    from trajload.refs import WindowRef as WindowRef
    from trajload.sampling.mixture_sources import Mixture as Mixture
    from trajload.sampling.mixture_sources import Source as Source
    from trajload.sampling.orders import Continuous as Continuous
    from trajload.sampling.orders import Interleaved as Interleaved
    from trajload.sampling.orders import Weighted as Weighted
    from trajload.sampling.select import split as split
    from trajload.shards.verify import verify as verify
    from trajload.shards.writer import Writer as Writer
    from trajload.sources.base import Dataset as Dataset
    from trajload.sources.open import open as open
    from trajload.spec import Image as Image
    from trajload.spec import Signal as Signal
    from trajload.spec import StreamSpec as StreamSpec
    from trajload.spec import Window as Window
    from trajload.types import Modality as Modality
    from trajload.world import World as World


def __getattr__(name: str) -> Any:
    where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module 'trajload' has no attribute {name!r}")
    if where == "trajload":  # a module of ours
        value: Any = importlib.import_module(f"trajload.{name}")
    else:
        value = getattr(importlib.import_module(where), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
