"""All rivals as a table: module, variant, packages, data format, and what is unfair about comparing with them."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from workloads.spec import Workload


@dataclass(frozen=True, kw_only=True)
class Rival:
    name: str
    module: str
    variant: Mapping[str, Any] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    """Distributions whose versions count; the first one is the rival itself."""
    format: str
    """What of `workloads.formats` it reads."""
    notes: str
    """What a reader must know before comparing."""
    limit: bool = False
    """A limit is no loader: nothing can be trained with it."""
    unfit: Mapping[str, str] = field(default_factory=dict)
    """workload → why this rival is not measured there."""

    def load(self) -> ModuleType:
        return importlib.import_module(f"rivals.{self.module}")

    def versions(self) -> dict[str, str | None]:
        """Return package → version, None where it is not installed."""
        out: dict[str, str | None] = {}
        for package in self.packages:
            try:
                out[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                out[package] = None
        return out


_NO_VIDEO = {"state": "has no video: a hand-written loader of signals is `in-ram`"}
_READY = "windows stored ready-made with their packets (about 20 times the bytes for 16 steps, GOP 10)"
_ALL = (
    Rival(
        name="trajload",
        module="by_trajload",
        packages=("trajload",),
        format="native",
        notes="globally random (`shuffled`)",
    ),
    Rival(
        name="trajload-interleaved",
        module="by_trajload",
        variant={"order": "interleaved"},
        packages=("trajload",),
        format="native",
        notes="mixes like a uniform shuffle, neighbouring windows share decoded frames",
    ),
    Rival(
        name="torchcodec",
        module="by_torchcodec",
        packages=("torchcodec",),
        format="files",
        notes="baseline. Approximate seek: right for these files, not for every file",
        unfit=_NO_VIDEO,
    ),
    Rival(
        name="torchcodec-hwc",
        module="by_torchcodec",
        variant={"order": "NHWC"},
        packages=("torchcodec",),
        format="files",
        notes="delivers (T, H, W, C): spares the transposition that the others pay for",
        unfit=_NO_VIDEO,
    ),
    Rival(
        name="pyav",
        module="by_pyav",
        packages=("av",),
        format="files",
        notes="indexed by round(pts * fps): right for these files, not for every file",
        unfit=_NO_VIDEO,
    ),
    Rival(
        name="lerobot-torchcodec",
        module="by_lerobot",
        variant={"backend": "torchcodec"},
        packages=("lerobot", "torchcodec", "datasets"),
        format="lerobot",
        notes="delivers float32 (4 times the bytes); also time stamps, padding masks and task; resizes floats",
    ),
    Rival(
        name="lerobot-pyav",
        module="by_lerobot",
        variant={"backend": "pyav"},
        packages=("lerobot", "av", "datasets"),
        format="lerobot",
        notes="as lerobot-torchcodec; torchvision's VideoReader is our stand-in over PyAV",
        unfit={"state": "has no video: the same as lerobot-torchcodec"},
    ),
    Rival(
        name="webdataset",
        module="by_webdataset",
        packages=("webdataset", "torchcodec"),
        format="webdataset",
        notes="not globally random: all windows of a decoded episode go through a buffer of 2,000 a worker (signals alone: 20,000)",
    ),
    Rival(
        name="mds",
        module="by_mds",
        packages=("mosaicml-streaming", "torchcodec"),
        format="mds",
        notes=_READY + "; shuffled within blocks of shards",
    ),
    Rival(
        name="litdata",
        module="by_litdata",
        packages=("litdata", "torchcodec"),
        format="litdata",
        notes=_READY + "; shuffled within chunks; mixed only because the windows were written in random order",
    ),
    Rival(
        name="grain",
        module="by_grain",
        packages=("grain", "array_record", "torchcodec"),
        format="arrayrecord",
        notes=_READY + "; globally random; 2 processes",
    ),
    Rival(
        name="grain-threads",
        module="by_grain",
        variant={"processes": False},
        packages=("grain", "array_record", "torchcodec"),
        format="arrayrecord",
        notes=_READY + "; globally random; 2 threads instead of processes",
    ),
    Rival(
        name="spdl",
        module="by_spdl",
        packages=("spdl",),
        format="files",
        notes="delivers (T, H, W, C); opens the file anew for each window, as it offers nothing else; own FFmpeg",
        unfit=_NO_VIDEO,
    ),
    Rival(
        name="torchrl",
        module="by_torchrl",
        packages=("torchrl", "tensordict"),
        format="raw",
        notes="decodes nothing: raw uint8 on disk, in the page cache; draws with replacement; delivers in the order drawn",
        unfit={"policy": "SliceSampler cuts all streams alike: 50 frames of each camera would be read for one"},
    ),
    Rival(
        name="in-ram",
        module="in_memory",
        packages=("numpy",),
        format="raw",
        notes="decodes nothing: all pictures raw in memory, gathered by NumPy in 2 threads",
    ),
    Rival(
        name="in-ram-plain",
        module="in_memory",
        variant={"is_ahead": False},
        packages=("numpy",),
        format="raw",
        notes="the same in the training thread, as it is mostly written",
    ),
    Rival(
        name="copy-limit",
        module="in_memory",
        variant={"limit": True},
        packages=("torch",),
        format="raw",
        notes="not a loader: torch.index_select of everything in memory into one buffer",
        limit=True,
    ),
    Rival(
        name="decode-limit",
        module="limit_decode",
        packages=("av",),
        format="native",
        notes="not a loader: codec threads alone, in random order, no pixels converted",
        limit=True,
        unfit={"state": "has no video"},
    ),
)
RIVALS = {rival.name: rival for rival in _ALL}


def baseline(workload: Workload) -> str:
    """Return the rival that all ratios of a workload are to, in the same run: what people write by hand."""
    return "torchcodec" if workload.cameras else "in-ram"
