"""Type aliases and small enums shared by every layer."""

from __future__ import annotations

from enum import Enum
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["BoolArray", "Int8Array", "Int32Array", "Int64Array", "Modality", "NDArray", "PathLikeStr", "UInt64Array"]

NDArray: TypeAlias = npt.NDArray[Any]
Int8Array: TypeAlias = npt.NDArray[np.int8]
Int32Array: TypeAlias = npt.NDArray[np.int32]
Int64Array: TypeAlias = npt.NDArray[np.int64]
UInt64Array: TypeAlias = npt.NDArray[np.uint64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
PathLikeStr: TypeAlias = "str | PathLike[str]"


class Modality(str, Enum):
    """What a stream carries. The value is what stands in manifests."""

    RGB = "rgb"
    DEPTH = "depth"
    PROPRIOCEPTION = "proprioception"
    ACTION = "action"
    REWARD = "reward"
    LANGUAGE = "language"
    METADATA = "metadata"

    def __str__(self) -> str:
        return self.value
