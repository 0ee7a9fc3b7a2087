"""How near two decodings of the same pictures are, and how near they have to be."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trajload.errors import ConfigError
from trajload.types import NDArray

__all__ = ["MAX_MEAN_ABS", "MIN_PSNR_DB", "Parity", "compare_pictures"]

MAX_MEAN_ABS = 1.0
"""Grey levels, of 255."""
MIN_PSNR_DB = 42.0


@dataclass(frozen=True, slots=True)
class Parity:
    """The difference of two stacks of 8-bit pictures."""

    mean_abs: float
    """In grey levels."""
    psnr_db: float
    """Infinite where they are equal."""
    max_abs: int

    @property
    def is_equal(self) -> bool:
        return self.max_abs == 0

    @property
    def is_within(self) -> bool:
        """Whether a device other than the CPU may deliver such pictures: see docs/decisions/0082."""
        return self.mean_abs <= MAX_MEAN_ABS and self.psnr_db >= MIN_PSNR_DB

    def __str__(self) -> str:
        if self.is_equal:
            return "equal bytes"
        return f"mean difference {self.mean_abs:.2f} grey levels, PSNR {self.psnr_db:.1f} dB"


def compare_pictures(got: NDArray, wanted: NDArray) -> Parity:
    """Return how far uint8 pictures `got` are from `wanted`, over all of them together."""
    if got.shape != wanted.shape or got.dtype != np.uint8 or wanted.dtype != np.uint8:
        raise ConfigError(
            f"pictures {got.shape} {got.dtype} and {wanted.shape} {wanted.dtype} cannot be compared: expected equal shapes of uint8."
        )
    if got.size == 0:
        return Parity(0.0, math.inf, 0)
    difference = np.abs(got.astype(np.int16) - wanted)
    mse = float((difference.astype(np.int32) ** 2).mean())
    return Parity(
        mean_abs=float(difference.mean()),
        psnr_db=10 * math.log10(255**2 / mse) if mse else math.inf,
        max_abs=int(difference.max()),
    )
