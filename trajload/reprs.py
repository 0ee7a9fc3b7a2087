"""What values of settings look like in a notebook and in messages: Python that makes them again, without defaults."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from typing import Any

__all__ = ["short_repr"]


def short_repr(value: Any) -> str:
    """Return `Name(field=value, ...)` of a dataclass with the fields that are not at their defaults. Use as `__repr__`."""
    shown = [f"{f.name}={getattr(value, f.name)!r}" for f in fields(value) if _is_set(value, f)]
    return f"{type(value).__name__}({', '.join(shown)})"


def _is_set(value: Any, field: Field[Any]) -> bool:
    if not field.repr:
        return False
    given = getattr(value, field.name)
    default = field.default if field.default_factory is MISSING else field.default_factory()
    # Of another type is another value: an array in place of None would be compared element by element.
    return given is not default and (type(given) is not type(default) or bool(given != default))
