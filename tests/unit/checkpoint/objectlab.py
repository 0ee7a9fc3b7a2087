"""An object store in memory whose client can be told to fail, before or after the work is done."""

from __future__ import annotations

from typing import Any

import obstore
from obstore.store import MemoryStore

from trajload.checkpoint.object_store import ObjectStore


class Flaky:
    """obstore whose next calls go wrong: each of `plan` is (function, before or after the work, error)."""

    def __init__(self) -> None:
        self.plan: list[tuple[str, str, BaseException]] = []
        self.calls: list[tuple[str, str]] = []

    def __getattr__(self, name: str) -> Any:
        real = getattr(obstore, name)

        def call(store: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, str(path)))
            planned = self.plan.pop(0) if self.plan and self.plan[0][0] == name else None
            if planned and planned[1] == "before":
                raise planned[2]
            result = real(store, path, *args, **kwargs)
            if planned and planned[1] == "after":
                raise planned[2]
            return result

        return call


def opened(memory: Any = None, **kwargs: Any) -> ObjectStore:
    store = ObjectStore(memory or MemoryStore(), prefix="runs/exp1", **kwargs)
    store._objects._api = Flaky()
    store._objects._pause = lambda seconds: None
    return store


def keys(memory: Any) -> list[str]:
    return sorted(item["path"] for item in obstore.list(memory).collect())
