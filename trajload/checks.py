"""Checks of arguments, and what an error says to someone who wrote almost the right thing."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from os import PathLike, fspath
from pathlib import Path

import numpy as np

from trajload.errors import ConfigError

__all__ = ["check_bool", "check_choice", "check_int", "check_path", "did_you_mean", "is_number", "quoted"]


def check_int(name: str, value: object, low: int, high: int | None = None, *, expected: str = "") -> int:
    """Return `value` as an int in [low, high), else raise ConfigError.

    Args:
        name: Of the argument.
        value: What was passed for it; bools and floats are refused, NumPy's ints are not.
        low: The least that is allowed.
        high: The first that is too large; None for no bound.
        expected: In the message, in place of "an int of at least `low`".
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < low:
        expected = expected or f"an int of at least {low}"
        raise ConfigError(f"{name}={value!r} is invalid: expected {expected}.")
    if high is not None and value >= high:
        raise ConfigError(f"{name}={value!r} is too large: expected less than {high}.")
    return int(value)


def is_number(value: object) -> bool:
    """Whether `value` is a real number; bools are none."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def check_bool(name: str, value: bool) -> bool:
    """Return `value` if it is a bool, else raise ConfigError: 'no' and None would count as one or the other."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name}={value!r} is invalid: expected True or False.")
    return value


def check_path(name: str, value: object) -> Path:
    """Return a path given as text or a path object, else raise ConfigError."""
    if not isinstance(value, (str, PathLike)) or not isinstance(fspath(value), str) or not fspath(value):
        raise ConfigError(f"{name}={value!r} is unusable: expected a path.")
    return Path(fspath(value))


def check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise ConfigError unless `value` is one of `allowed`."""
    if not isinstance(value, str) or value not in allowed:
        raise ConfigError(
            f"{name}={value!r} is unknown: expected one of {quoted(allowed)}.{did_you_mean(value, allowed)}"
        )


def did_you_mean(given: object, allowed: Iterable[str]) -> str:
    """Return a sentence with the name in `allowed` that `given` is a slip of, after a space; '' if there is none."""
    near = _nearest(given, list(allowed)) if isinstance(given, str) else None
    return "" if near is None else f" Did you mean {near!r}?"


def _nearest(given: str, names: list[str]) -> str | None:
    plain = given.strip().lower()
    same = [name for name in names if name.lower() == plain]
    near = same or get_close_matches(plain, names, n=1, cutoff=0.75)
    return near[0] if near else None


def quoted(names: Iterable[str]) -> str:
    """Return names as they stand in a message: 'a', 'b', 'c'."""
    return ", ".join(map(repr, names))
