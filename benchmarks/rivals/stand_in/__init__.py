"""Makes rivals importable that want a torchvision which does not load beside this torch."""

import importlib.util
import sys
from pathlib import Path


def use_where_torchvision_is_missing() -> None:
    """Put the stand-in on the path, last, unless the real torchvision is installed."""
    if importlib.util.find_spec("torchvision") is None:
        sys.path.append(str(Path(__file__).parent))
