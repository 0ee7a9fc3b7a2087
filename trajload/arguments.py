"""What a call says that does not fit its function: which argument was meant, in place of Python's bare TypeError.

`explains_calls` goes on a public function, or on a class for its constructor and public methods. Signature, documentation and
types stay as they are: the function is called as before, and only where Python refuses the call is anything looked up.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType
from typing import Any, TypeVar

from trajload.errors import ArgumentError
from trajload.foreign_names import hint_for

__all__ = ["check_options", "explains_calls", "explains_calls_as"]

_MOST_NAMES = 6
"""Of those that could have been meant by arguments without a name."""

_T = TypeVar("_T", bound=Callable[..., Any])


def explains_calls(subject: _T) -> _T:
    """Return `subject`, which now answers a call that does not fit with an ArgumentError that names the right arguments.

    Args:
        subject: A function; or a class, whose constructor and public methods are replaced in place.

    Example:
        >>> @explains_calls
        ... def load(path, *, num_steps=1): ...
        >>> load("data", num_step=2)
        Traceback (most recent call last):
        ...
        trajload.errors.ArgumentError: load() has no argument 'num_step'. Did you mean 'num_steps'?
    """
    return explains_calls_as(subject.__name__)(subject)


def explains_calls_as(title: str) -> Callable[[_T], _T]:
    """Return `explains_calls` under another name: that of the class whose base is decorated, and which users call."""
    return functools.partial(_explained, title)


def _explained(title: str, subject: _T) -> _T:
    if not isinstance(subject, type):
        return _explaining(subject, title, skips=0)  # type: ignore[return-value]
    for name, value in list(vars(subject).items()):
        call = title if name == "__init__" else f"{title}.{name}"
        if name.startswith("_") and name != "__init__":
            continue
        if isinstance(value, (classmethod, staticmethod)):
            inner = _explaining(value.__func__, call, skips=int(isinstance(value, classmethod)))
            setattr(subject, name, type(value)(inner))
        elif isinstance(value, FunctionType):
            setattr(subject, name, _explaining(value, call, skips=1))
    return subject


def check_options(call: str, options: Mapping[str, object], allowed: Iterable[str]) -> None:
    """Raise ArgumentError if `options`, the keywords that a function passes on, holds a name that is not in `allowed`."""
    allowed = list(allowed)
    unknown = [name for name in options if name not in allowed]
    if unknown:
        raise ArgumentError(_unknown(call, unknown, allowed))


def _explaining(function: Callable[..., Any], call: str, skips: int) -> Callable[..., Any]:
    """Return `function` with answers; the first `skips` arguments are not the caller's (self, cls)."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as err:
            trace = err.__traceback__
            if trace is not None and trace.tb_next is not None:
                raise  # it came from inside: the call itself was in order
            message = _answer(function, call, args[skips:], kwargs, skips)
            if not message:
                raise
        raise ArgumentError(message)

    return called


def _answer(
    function: Callable[..., Any], call: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], skips: int
) -> str:
    """Return what is wrong with a call, '' if that is not known."""
    from trajload.checks import quoted  # NumPy with it, which a checkpoint store does without

    parameters = list(inspect.signature(function).parameters.values())[skips:]
    by_place = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    by_name = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    kinds = {p.kind for p in parameters}
    found = []
    unknown = [name for name in kwargs if name not in by_name]
    if unknown and inspect.Parameter.VAR_KEYWORD not in kinds:
        found.append(_unknown(call, unknown, by_name))
    if len(args) > len(by_place) and inspect.Parameter.VAR_POSITIONAL not in kinds:
        others = [f"{name}=" for name in by_name if name not in by_place[: len(args)]]
        rest = ", ".join(others[:_MOST_NAMES]) + (", ..." if len(others) > _MOST_NAMES else "")
        takes = f"only {quoted(by_place)}" if by_place else "no argument"
        found.append(
            f"{call}() takes {takes} without a name, and got {len(args)}. Name the others{f': {rest}' if rest else ''}."
        )
    given = {*by_place[: len(args)], *kwargs}
    if twice := [name for name in by_place[: len(args)] if name in kwargs]:
        found.append(f"{call}() got {quoted(twice)} twice: by place, and by name. Leave one out.")
    missing = [p.name for p in parameters if p.default is p.empty and p.name in by_name and p.name not in given]
    if missing:
        found.append(f"{call}() needs {quoted(missing)}, which {'has' if len(missing) == 1 else 'have'} no default.")
    return " ".join(found)


def _unknown(call: str, unknown: Iterable[str], known: Iterable[str]) -> str:
    """Return a sentence for each unknown name, and what there is if for one of them nothing better is known."""
    from trajload.checks import did_you_mean

    known = list(known)
    said, is_lost = [], False
    for name in unknown:
        hint = hint_for(call, name) or did_you_mean(name, known).strip()
        is_lost = is_lost or not hint
        said.append(
            f"{call}() has no argument {name!r}{'' if not hint else '. ' if hint.startswith('Did') else ': '}{hint or '.'}"
        )
    if is_lost:
        said.append(f"It takes {', '.join(known)}." if known else "It takes none.")
    return " ".join(said)
