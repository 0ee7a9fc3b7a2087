"""Tiny LeRobot folders, written once per session."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def v2_folder(tmp_path_factory: pytest.TempPathFactory, maker: ModuleType) -> Path:
    return maker.make_v2(tmp_path_factory.mktemp("v2") / "cubes", [10, 7, 25, 4])


@pytest.fixture(scope="session")
def v3_folder(tmp_path_factory: pytest.TempPathFactory, maker: ModuleType) -> Path:
    return maker.make_v3(tmp_path_factory.mktemp("v3") / "cubes", [10, 7, 25, 4, 9, 13, 8, 5, 6, 11], row_group=8)


@pytest.fixture(scope="session")
def index_cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("index-cache")
