"""Tiny LeRobot folders for the converter, written once per session."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def v2_folder(tmp_path_factory: pytest.TempPathFactory, maker: ModuleType) -> Path:
    return maker.make_v2(tmp_path_factory.mktemp("v2") / "cubes", [20, 17, 25])


@pytest.fixture(scope="session")
def v3_folder(tmp_path_factory: pytest.TempPathFactory, maker: ModuleType) -> Path:
    """Episodes share videos and begin and end inside groups of pictures, B frames across the cuts."""
    return maker.make_v3(tmp_path_factory.mktemp("v3") / "cubes", [20, 17, 25, 14], per_video=4, gop=16)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"
