"""Transforms by name and arguments: from a configuration file, a command line, or a saved state."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from trajload.augment.contract import Transform
from trajload.errors import ArgumentError, ConfigError
from trajload.sources.base import Dataset

__all__ = ["BUILT_IN", "transforms_from_json"]

BUILT_IN = {
    "ActionNoise": "trajload.augment.steps",
    "ColorJitter": "trajload.augment.colour",
    "FrameDrop": "trajload.augment.steps",
    "GaussianBlur": "trajload.augment.colour",
    "Normalizer": "trajload.augment.normalizer",
    "RandomCrop": "trajload.augment.geometry",
    "RandomFlip": "trajload.augment.geometry",
    "Resize": "trajload.augment.geometry",
}
"""Name → module of the provided transforms."""


def transforms_from_json(values: Any, dataset: Any) -> list[Transform]:
    """Return the transforms that a list of {"name": ..., arguments} describes, as `contract.config_of` writes it.

    A user's transform is named 'module:name' and imported. A Normalizer, {"name": "Normalizer", "methods": {...}}, is
    made of the dataset's statistics; a digest beside it must agree.

    Raises:
        ConfigError: An unknown name, wrong arguments, or a function that cannot be imported.
    """
    if isinstance(values, (str, Mapping)) or not isinstance(values, Iterable):
        raise ConfigError(
            f'transforms are {values!r}: expected a list such as [{{"name": "RandomCrop", "size": [96, 96]}}]. '
            "A state holds only a digest of a long list: pass the configuration itself."
        )
    return [_transform(i, value, dataset) for i, value in enumerate(values)]


def _transform(i: int, value: Any, dataset: Any) -> Transform:
    value = {"name": value} if isinstance(value, str) else value
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise ConfigError(f'transforms[{i}]={value!r} is unusable: expected an object with "name" and arguments.')
    arguments = dict(value)
    name = arguments.pop("name")
    if name == "Normalizer" and not isinstance(dataset, Dataset):
        raise ConfigError(
            f"transforms[{i}] is a Normalizer, which is made of the statistics of one dataset: give each source of a mixture its own, "
            "with tl.Source(transforms=[...])."
        )
    if name == "Normalizer":
        return _normalizer(i, arguments, dataset)
    target = _import(i, name)
    args, keywords = arguments.pop("args", []), arguments.pop("keywords", {})
    try:
        if isinstance(target, type):
            target = target(**arguments)
        elif arguments:
            raise TypeError(f"unexpected {', '.join(map(repr, arguments))}")
        made: Transform = functools.partial(target, *args, **keywords) if args or keywords else target
    except (TypeError, ValueError) as err:
        if isinstance(err, ConfigError) and not isinstance(err, ArgumentError):
            raise
        said = str(err).rstrip(".")
        raise ConfigError(f"transforms[{i}] ({name}) does not take these arguments: {said}.{_known(target)}") from err
    return made


def _known(target: Any) -> str:
    """Return a sentence with the arguments of a class, nothing where they cannot be told."""
    try:
        names = list(inspect.signature(target).parameters) if isinstance(target, type) else []
    except ValueError:  # of a class written in C
        names = []
    return f" Its arguments are {', '.join(map(repr, names))}." if names else ""


def _import(i: int, name: str) -> Any:
    if name in BUILT_IN:
        return getattr(importlib.import_module(BUILT_IN[name]), name)
    module, colon, inside = name.partition(":")
    if not colon:
        raise ConfigError(
            f"transforms[{i}] is named {name!r}: expected one of {', '.join(map(repr, BUILT_IN))}, or 'module:function'."
        )
    if module == "__main__" or "<locals>" in inside:
        raise ConfigError(
            f"transforms[{i}] ({name}) cannot be imported: it was defined inside a script or function. Move it to the top of "
            "a module."
        )
    try:
        found: Any = importlib.import_module(module)
        for part in inside.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as err:
        raise ConfigError(
            f"transforms[{i}] ({name}) cannot be imported: {err}. Put the folder of its module on PYTHONPATH."
        ) from err
    return found


def _normalizer(i: int, arguments: dict[str, Any], dataset: Dataset) -> Transform:
    from trajload.augment.normalizer import Normalizer

    unknown = set(arguments) - {"methods", "stats", "data_digest", "digest"}
    if unknown or "methods" not in arguments:
        raise ConfigError(f"transforms[{i}] (Normalizer) takes 'methods' and 'stats': got {sorted(arguments)}.")
    made = Normalizer.from_dataset(dataset, arguments["methods"], stats=arguments.get("stats", "auto"))
    if arguments.get("digest", made.digest) != made.digest:
        raise ConfigError(
            f"transforms[{i}] (Normalizer) was made of other statistics: got digest {made.digest[:12]}… of this dataset, "
            f"expected {str(arguments['digest'])[:12]}…"
        )
    return made
