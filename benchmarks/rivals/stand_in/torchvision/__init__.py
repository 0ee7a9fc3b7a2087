"""Stand-in for torchvision, whose compiled part does not load beside the torch these benchmarks use.

Only what two rivals import is here: LeRobotDataset (video reading with its `pyav` backend, and names that its optional
augmentations subclass) and MosaicML Streaming (names of its image data sets). `VideoReader` does with PyAV what the
original documents; everything else exists to be imported and raises when it is used.
"""

from torchvision import datasets, io, transforms

__all__ = ["datasets", "io", "set_video_backend", "transforms"]
__version__ = "0.0.0+stand.in"


def set_video_backend(backend: str) -> None:
    """Accept the one backend there is."""
    if backend != "pyav":
        raise RuntimeError(f"video backend {backend!r} is not part of this stand-in: expected 'pyav'.")
