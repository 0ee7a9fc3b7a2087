"""Datasets for tests of mixtures, written once."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def mixture_maker() -> ModuleType:
    """The module that writes datasets which fit together."""
    spec = importlib.util.spec_from_file_location("mixture_maker", Path(__file__).parent / "mixture_maker.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def three_folders(tmp_path_factory: pytest.TempPathFactory, mixture_maker: ModuleType) -> dict[str, Path]:
    """Three small datasets whose streams overlap, see `mixture_maker.write_three`."""
    folders: dict[str, Path] = mixture_maker.write_three(tmp_path_factory.mktemp("mixture"))
    return folders
