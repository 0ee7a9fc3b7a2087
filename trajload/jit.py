"""Compiled kernels, loaded from numba's cache on disk without setting up its compiler.

numba sets up its compiler (a third of a second of imports and tables) before it looks whether machine code is on disk.
For the first batch of a process that is the largest part. The compiler is only needed, and then set up by numba itself,
where there is something to compile.
"""

from __future__ import annotations

from typing import Any, TypeVar

__all__ = ["KNOWN_VERSIONS", "compiled", "compiled_short", "loaded_quickly"]

_F = TypeVar("_F")

KNOWN_VERSIONS = ((0, 68),)
"""Releases of numba whose cache was seen to load so; others load as they like to."""


def compiled(function: _F) -> _F:
    """Return `function` as a kernel: compiled when first called, kept on disk, run without the GIL, bounds unchecked."""
    return _compiled(function, nogil=True)


def compiled_short(function: _F) -> _F:
    """Return a kernel of a few microseconds, as `compiled` does, but run with the GIL.

    Where threads compete, a thread that lets go of the GIL waits for it and for a core: often ten times as long as such
    a kernel takes.
    """
    return _compiled(function, nogil=False)


def _compiled(function: Any, *, nogil: bool) -> Any:
    import numba

    return loaded_quickly(numba.njit(nogil=nogil, cache=True, boundscheck=False, error_model="numpy")(function))


def loaded_quickly(dispatcher: Any) -> Any:
    """Return a function made by `numba.njit(cache=True)`, before it is compiled or first called, loading as said above.

    Anything unexpected leaves the loading to numba. Machine code is the same either way.
    """
    import numba

    if tuple(numba.version_info[:2]) in KNOWN_VERSIONS:
        cache: Any = getattr(dispatcher, "_cache", None)
        if hasattr(cache, "_load_overload") and hasattr(cache, "_guard_against_spurious_io_errors"):
            cache.load_overload = _Load(cache)
    return dispatcher


class _Load:
    """What numba's `Cache.load_overload` does, minus `target_context.refresh()`. Called under numba's own lock."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        self._slowly = cache.load_overload

    def __call__(self, signature: Any, target_context: Any) -> Any:
        try:
            from numba.core import runtime

            # of the set-up, all that machine code refers to: counted references
            vars(runtime)["rtsys"].initialize(target_context)
            with self._cache._guard_against_spurious_io_errors():
                return self._cache._load_overload(signature, target_context)
            return None
        except Exception:
            return self._slowly(signature, target_context)
