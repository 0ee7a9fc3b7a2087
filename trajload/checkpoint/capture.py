"""Snapshots: the whole state at one moment, which nothing that happens afterwards can change.

A component gives `<name>.safetensors` with its tensors, if it has any, and `<name>.json` with everything else. Tensors are copied,
and everything else is bytes, before `snapshot` returns: no live object is held, so a writer in the background can take its
time. See docs/decisions/0127-snapshots-hold-no-live-object.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

from torch import Tensor

from trajload.arguments import explains_calls
from trajload.checkpoint.components import Component, about, check_names, parameter_names, take
from trajload.checkpoint.digests import new_digest
from trajload.checkpoint.staging import Staging
from trajload.checkpoint.tensors import Layout, no_data, plan_layout, same_tensor_key, tensor_chunks
from trajload.checkpoint.tree import flatten
from trajload.checkpoint.tree_read import dump
from trajload.errors import CheckpointError, described

__all__ = ["FORMAT", "VERSION", "Component", "PlannedFile", "Snapshot", "Taken", "snapshot"]

FORMAT = "trajload.component"
VERSION = 1


class PlannedFile(NamedTuple):
    """One file of a snapshot."""

    name: str
    chunks: Callable[[], Iterator[bytes | memoryview]]
    """Gives the bytes; may be called any number of times until the snapshot is released."""
    bytes: int
    """Exact."""

    def digest(self) -> str:
        """Return the digest of the content, as the store computes it, without writing anything."""
        digest = new_digest()
        for chunk in self.chunks():
            digest.update(chunk)
        return digest.text()


@dataclass(frozen=True)
class Taken:
    """One component as it was."""

    name: str
    document: bytes
    """Of the JSON file."""
    tensors: Mapping[str, Tensor]

    @cached_property
    def layout(self) -> Layout:
        """Of the file of tensors; made when it is first needed, which is not while training waits."""
        return plan_layout(self.tensors)

    def files(self) -> list[PlannedFile]:
        document, tensors = self.document, self.tensors
        files = [PlannedFile(f"{self.name}.json", lambda: iter((document,)), len(document))]
        if tensors:
            layout = self.layout
            chunks = partial(tensor_chunks, tensors, layout)
            files.insert(0, PlannedFile(f"{self.name}.safetensors", chunks, layout.bytes))
        return files


@dataclass
class Snapshot:
    """The state at one moment.

    `is_copy` False means that tensors are those of the live objects: to be written before anything changes them.
    """

    taken: Mapping[str, Taken]
    is_copy: bool
    copied_bytes: int
    """Of tensors; ones that are shared (tied weights) count once."""
    seconds: float
    """That taking it cost: what a background save makes training wait."""
    _staging: Staging | None = None
    _buffers: list[Tensor] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Of all files, exactly."""
        return sum(planned.bytes for planned in self.files())

    def files(self) -> list[PlannedFile]:
        """Return the files to be written, one or two for each component."""
        return [planned for taken in self.taken.values() for planned in taken.files()]

    def release(self) -> None:
        """Let go of the copies; their memory is used for the next snapshot of the same `Staging`. Idempotent."""
        self.taken = {}
        buffers, self._buffers = self._buffers, []
        if self._staging is not None and buffers:
            self._staging.give_back(buffers)


@explains_calls
def snapshot(state: Mapping[str, Any], *, copy: bool = True, staging: Staging | None = None) -> Snapshot:
    """Return the state of every component at this moment.

    Args:
        state: Names and components: modules, optimisers, anything with `state_dict` and `load_state_dict`,
            `Component(get, set)`, or plain trees that are restored in place.
        copy: False leaves tensors where they are, for a save that is complete before training goes on.
        staging: Where copies are made. Keep one and give it each time; copies then cost no new memory.

    Raises:
        ConfigError: A component's name or kind cannot be kept.
        CheckpointError: Something in a state cannot be kept; its path is named.
    """
    begin = time.perf_counter()
    check_names(state)
    names = parameter_names(state)
    copier = _Copier(staging or Staging()) if copy else None
    taken = {}
    try:
        for name, value in state.items():
            live, plain = flatten(take(name, value), path=name)
            head = {"format": FORMAT, "version": VERSION, **about(name, value, names), "tensors": len(live)}
            document = dump({**head, "tree": plain})
            tensors = copier.copies(name, live) if copier else live
            taken[name] = Taken(name, document, tensors)
    except BaseException:
        if copier:
            copier.undo()
        raise
    if copier is None:
        return Snapshot(taken, False, 0, time.perf_counter() - begin)
    copier.finish()
    return Snapshot(taken, True, copier.bytes, time.perf_counter() - begin, staging, copier.buffers)


class _Copier:
    """Copies each tensor once, however many names and components share it."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._done: dict[tuple[Any, ...], Tensor] = {}
        self._live: list[Iterable[Tensor]] = []
        self.buffers: list[Tensor] = []
        self.bytes = 0

    def copies(self, component: str, live: Mapping[str, Tensor]) -> dict[str, Tensor]:
        self._live.append(list(live.values()))  # keys stand for memory: it must not be freed and used by another
        copied = {}
        for name, tensor in live.items():
            if tensor.is_meta:
                raise no_data(f"tensor {name!r} of component {component!r}")
            try:
                copied[name] = self._copy(tensor)
            except (RuntimeError, MemoryError) as err:
                raise CheckpointError(
                    f"tensor {name!r} of component {component!r} could not be copied: {described(err)} "
                    "If memory is short, mode='sync' needs no copy."
                ) from err
        return copied

    def _copy(self, tensor: Tensor) -> Tensor:
        key = same_tensor_key(tensor)
        if key is not None and key in self._done:
            return self._done[key]
        copied, buffer = self._staging.copy(tensor)
        if buffer is not None:
            self.buffers.append(buffer)
            self.bytes += buffer.numel()
        if key is not None:
            self._done[key] = copied
        return copied

    def finish(self) -> None:
        self._staging.wait(tensor.device for tensors in self._live for tensor in tensors)

    def undo(self) -> None:
        self.finish()
        self._staging.give_back(self.buffers)
