"""One way to open a store, whatever it stands on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

from trajload.arguments import explains_calls
from trajload.errors import ConfigError, MissingDependencyError

if TYPE_CHECKING:
    from trajload.checkpoint.store import Store

__all__ = ["open"]


@explains_calls
def open(root: Any, *, create: bool = False, take_over: bool = True) -> Store:
    """Return the store at `root`: a folder, a URL of an object store (`s3://bucket/prefix`), or a store, as it is.

    Args:
        root: Where it is.
        create: Make it where there is none.
        take_over: Of an object store, which has no locks: whether opening it for writing takes it from another writer,
            whose next commit then fails; False is refused while there is one.

    Raises:
        ConfigError: `root` is none of these.
        CheckpointError: There is no store and `create` is off, or what stands there is something else.
    """
    if hasattr(root, "newest") and hasattr(root, "commit"):
        return cast("Store", root)
    if not isinstance(root, (str, os.PathLike)):
        raise ConfigError(f"store={root!r} is unusable: expected a folder, a URL, or a trajload.checkpoint.Store.")
    where = os.fspath(root)
    if not where:
        raise ConfigError("store='' is empty: expected a folder or a URL; '.' is this folder. Is a variable not set?")
    if "://" in where and not where.startswith("file://"):
        try:
            from trajload.checkpoint.object_store import ObjectStore
        except ImportError as err:
            raise MissingDependencyError(
                "stores on object storage need obstore; run: pip install 'trajload[s3]'"
            ) from err
        return ObjectStore.open(where, create=create, take_over=take_over)
    from trajload.checkpoint.store import Store as LocalStore

    return LocalStore(where.removeprefix("file://"), create=create)
