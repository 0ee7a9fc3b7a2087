"""A transform of one source of a mixture: it sees that source's streams, under the names they have there."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from trajload.augment.contract import Layout, Transform, WindowDict, config_of
from trajload.spec import StreamSpec

__all__ = ["own_streams"]

_SUFFIXES = ("", "_is_pad", "_is_missing")


def own_streams(transform: Transform, own_names: Mapping[str, str]) -> Transform:
    """Return `transform` as a transform of the batch's windows, in which the source's streams stand under batch keys.

    Args:
        transform: Of the source.
        own_names: Batch key → own name, for each stream the source gives. Other streams pass by.
    """
    both = hasattr(transform, "draw") and hasattr(transform, "apply")
    return (_Drawing if both else _OwnStreams)(transform, own_names)


class _OwnStreams:
    def __init__(self, transform: Any, own_names: Mapping[str, str]) -> None:
        self._transform = transform
        self._own = dict(own_names)
        what = transform
        while isinstance(what, functools.partial):
            what = what.func
        what = what if hasattr(what, "__qualname__") else type(what)
        # Messages and states name the transform, not this shell.
        self.__qualname__, self.__module__ = what.__qualname__, what.__module__
        key_of = {own: key for key, own in self._own.items()}
        for attribute in ("streams", "signs"):
            names = getattr(transform, attribute, None)
            if isinstance(names, Collection) and not isinstance(names, str):
                setattr(self, attribute, tuple(key_of.get(name, name) for name in names))

    def bind(self, specs: Mapping[str, StreamSpec]) -> Transform:
        own = {key: name for key, name in self._own.items() if key in specs}
        transform = self._transform
        if hasattr(transform, "bind"):
            transform = transform.bind({name: specs[key] for key, name in own.items()})
        return own_streams(transform, own)

    def out_layout(self, layout: Layout) -> Layout:
        if not hasattr(self._transform, "out_layout"):
            return layout
        mine = {name: key for key, name in self._own.items() if key in layout}
        out = dict(layout)
        out.update(
            (mine.get(name, name), value)
            for name, value in self._transform.out_layout({name: layout[key] for name, key in mine.items()}).items()
        )
        return out

    def config_json(self) -> dict[str, Any]:
        return config_of(self._transform)

    def __call__(self, window: WindowDict, generator: np.random.Generator) -> WindowDict:
        return self._back(window, self._transform(self._mine(window), generator))

    def _keys(self) -> dict[str, str]:
        """Return own key → batch key, masks included."""
        return {f"{name}{end}": f"{key}{end}" for key, name in self._own.items() for end in _SUFFIXES}

    def _mine(self, window: WindowDict) -> WindowDict:
        return {mine: window[key] for mine, key in self._keys().items() if key in window}

    def _back(self, window: WindowDict, out: Any) -> Any:
        if not isinstance(out, dict):
            return out  # refused by who called
        keys = self._keys()
        rest = {key: value for key, value in window.items() if key not in keys.values()}
        return {**{keys.get(mine, mine): value for mine, value in out.items()}, **rest}


class _Drawing(_OwnStreams):
    def draw(self, window: WindowDict, generator: np.random.Generator) -> Any:
        return self._transform.draw(self._mine(window), generator)

    def apply(self, window: WindowDict, draws: Any) -> WindowDict:
        return self._back(window, self._transform.apply(self._mine(window), draws))
