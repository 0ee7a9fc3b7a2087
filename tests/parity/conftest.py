"""Datasets for tests of mixtures, written once, and a guard that no row is decoded on its own."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from by_path import load

from trajload.pipeline.source_rows import SourceRows


@pytest.fixture(scope="session")
def mixture_maker() -> ModuleType:
    """The module that writes datasets which fit together."""
    return load(Path(__file__).with_name("mixture_maker.py"))


@pytest.fixture(scope="session")
def three_folders(tmp_path_factory: pytest.TempPathFactory, mixture_maker: ModuleType) -> dict[str, Path]:
    """Three small datasets whose streams overlap, see `mixture_maker.write_three`."""
    folders: dict[str, Path] = mixture_maker.write_three(tmp_path_factory.mktemp("mixture"))
    return folders


@pytest.fixture()
def no_rows(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes it an error to decode a row plainly, from the moment it is called."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a row was decoded on its own")

    return lambda: monkeypatch.setattr(SourceRows, "decode", refuse)
