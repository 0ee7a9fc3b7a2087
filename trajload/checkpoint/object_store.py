"""Checkpoints in an object store: the same records, parts and rules as in a folder.

>>> store = ObjectStore.open("s3://bucket/runs/exp1")                          # doctest: +SKIP
>>> local.promote(local.pick(), to=store)                                     # doctest: +SKIP
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from trajload.arguments import explains_calls
from trajload.checkpoint.entries import Commit, PartSummary
from trajload.checkpoint.generation import Generation
from trajload.checkpoint.object_lock import EpochLock
from trajload.checkpoint.object_medium import ObjectMedium
from trajload.checkpoint.store import ABANDONED_AFTER_S, Store
from trajload.errors import CheckpointAbortedError, ConfigError, MissingDependencyError

__all__ = ["ObjectStore"]


@explains_calls
class ObjectStore(Store):
    """The checkpoints of one training, below one prefix of an object store.

    Like `Store`, except that it has no folder (`root`, `Generation.folder`), and that a second writer takes over instead
    of being kept out: the first one's next commit is a WriterConflictError. `PartWriter.make_folder` gives a temporary
    one, whose files `adopt` sends. `PartReader.path` fetches a copy, which `close` removes.

    Args:
        store: A store of obstore.
        prefix: Where in it.
        name: For messages.
        create: Make the store where there is none, else CheckpointError.
        take_over: Write although the last writer has not said that it is done; see `EpochLock`.
    """

    def __init__(
        self, store: Any, *, prefix: str = "", name: str | None = None, create: bool = True, take_over: bool = True
    ) -> None:
        medium = ObjectMedium(store, prefix, name or f"{type(store).__name__}/{prefix}")
        self._objects = medium
        self._since: dict[str, float] = {}
        self._open(medium, EpochLock(medium, take_over=take_over), create)

    @classmethod
    def open(cls, url: str, *, create: bool = True, take_over: bool = True, **options: Any) -> ObjectStore:
        """Return the store at a URL: `s3://bucket/prefix`, `gs://`, `az://`, `memory://`.

        Args:
            url: Of bucket and prefix. Credentials come from where obstore finds them, or from `options`.
            create: As in `ObjectStore`.
            take_over: As in `ObjectStore`.
            options: For obstore: `region`, `endpoint`, `client_options`, ...
        """
        if not isinstance(url, str) or "://" not in url or url.startswith("file:"):
            raise ConfigError(f"url is {url!r}: expected one like 's3://bucket/prefix'. A folder is opened by `Store`.")
        try:
            from obstore import exceptions
            from obstore.store import from_url
        except ImportError as err:
            raise MissingDependencyError(
                "checkpoints on object stores need obstore; run: pip install 'trajload[s3]'"
            ) from err
        try:
            opened = from_url(url, **options)
        except (exceptions.BaseError, ValueError) as err:
            raise ConfigError(f"object store {url!r} cannot be opened: {str(err).partition(chr(10))[0]}") from err
        return cls(opened, name=url, create=create, take_over=take_over)

    @property
    def durability(self) -> str:
        """What commits promise: 'service', or 'unknown' until this object has opened the store for writing."""
        return self._medium.durability

    def begin(self, step: int, *, world: int = 1, need_bytes: int = 0, nonce: str | None = None) -> Generation:
        generation = super().begin(step, world=world, need_bytes=need_bytes, nonce=nonce)
        self._since = {generation.path: time.monotonic()}
        return generation

    def commit(self, generation: Generation, parts: Sequence[PartSummary], info: Mapping[str, Any]) -> Commit:
        age_s = time.monotonic() - self._since.get(generation.path, time.monotonic())
        if age_s > ABANDONED_AFTER_S / 2:
            # Another writer may take it for abandoned soon, and there is no lock to keep it from that.
            raise CheckpointAbortedError(
                f"generation {generation.path!r} was begun {age_s / 3600:.0f} hours ago: got more than half of the "
                f"{ABANDONED_AFTER_S / 3600:.0f} hours after which others may sweep it. Nothing was committed."
            )
        return super().commit(generation, parts, info)

    def close(self) -> None:
        """Remove the copies that `PartReader.path` made. Idempotent; the store may be used afterwards."""
        self._objects.close()

    def __enter__(self) -> ObjectStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
