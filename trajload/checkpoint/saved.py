"""A component as a checkpoint holds it: read from the files of a part, or from a snapshot in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trajload.checkpoint.capture import FORMAT, VERSION, Taken
from trajload.checkpoint.components import RESERVED
from trajload.checkpoint.digests import digest_file
from trajload.checkpoint.entries import FileEntry
from trajload.checkpoint.failures import reason
from trajload.checkpoint.reader import PartReader
from trajload.checkpoint.tensor_file import TensorFacts, TensorFile, refuse_pickle
from trajload.checkpoint.tree_read import parse, unflatten
from trajload.errors import CheckpointCorruptError, CheckpointError, CheckpointMismatchError

__all__ = ["Saved", "component_names", "read_saved", "saved_of"]

_PICKLE_ENDS = (".pt", ".pth", ".bin", ".pkl", ".pickle", ".ckpt")


@dataclass(frozen=True)
class Saved:
    """One component of a checkpoint."""

    name: str
    about: Mapping[str, Any]
    """`kind`, `type`, and `parameters` of an optimiser."""
    plain: Any
    facts: Mapping[str, TensorFacts]
    load: Callable[[], dict[str, Tensor]]
    """Gives all tensors, each time in new memory."""

    def state(self) -> Any:
        """Return the state, which nothing else holds."""
        return unflatten(self.plain, self.load(), what=self.name)


def component_names(part: PartReader) -> list[str]:
    """Return the components that a part holds, in the order of their names."""
    names = (name.removesuffix(".json") for name in part.files if name.endswith(".json") and "/" not in name)
    return sorted(name for name in names if name not in RESERVED)


def read_saved(part: PartReader, name: str, *, verify: bool = True) -> Saved:
    """Return a component of a part; its tensors are not read yet.

    Args:
        part: Of the commit that is restored.
        name: Of the component.
        verify: Compare sizes and digests first. False where that has just been done.

    Raises:
        CheckpointMismatchError: The part has no such component, or of a newer format, or as a pickle.
        CheckpointCorruptError: A file is damaged or missing.
    """
    document_name, tensors_name = f"{name}.json", f"{name}.safetensors"
    if document_name not in part.files:
        raise _absent(part, name)
    document = parse(part.read(document_name, verify), document_name)
    told = _checked_document(document, document_name)
    if told["tensors"] == 0:
        return Saved(name, told, document["tree"], {}, dict)
    if tensors_name not in part.files:
        raise CheckpointCorruptError(f"the checkpoint lacks the file {tensors_name!r}: it holds {sorted(part.files)}.")
    path = part.path(tensors_name)
    with part.guarded():
        if verify:
            _verify(path, part.files[tensors_name])
        with TensorFile(path, name=tensors_name) as tensors:
            facts = tensors.index.facts()
    if len(facts) != told["tensors"]:
        raise CheckpointCorruptError(
            f"{tensors_name} holds {len(facts)} tensors, {document_name} tells of {told['tensors']}."
        )

    def load() -> dict[str, Tensor]:
        with part.guarded(), TensorFile(path, name=tensors_name) as tensors:
            return tensors.read()

    return Saved(name, told, document["tree"], facts, load)


def saved_of(taken: Taken) -> Saved:
    """Return a component of a snapshot that is still held, in the same form."""
    document = parse(taken.document, taken.name)

    def load() -> dict[str, Tensor]:
        done: dict[int, Tensor] = {}
        for tensor in taken.tensors.values():
            if id(tensor) not in done:
                done[id(tensor)] = torch.empty_like(tensor, device="cpu").copy_(tensor)
        return {name: done[id(tensor)] for name, tensor in taken.tensors.items()}

    facts = {name: TensorFacts.of(tensor) for name, tensor in taken.tensors.items()}
    return Saved(taken.name, document, document["tree"], facts, load)


def _verify(path: Path, entry: FileEntry) -> None:
    """Compare the bytes that will be loaded: of an object store these are those of the copy that was fetched."""
    try:
        size, digest = path.stat().st_size, digest_file(path, entry.digest.partition(":")[0])
    except OSError as err:
        raise CheckpointCorruptError(f"file {entry.path!r} cannot be read: {reason(err)}.") from err
    if (size, digest) != (entry.bytes, entry.digest):
        raise CheckpointCorruptError(
            f"file {entry.path!r} is damaged: got {size} bytes of {digest}, expected {entry.bytes} of {entry.digest}."
        )


def _absent(part: PartReader, name: str) -> CheckpointError:
    for other in part.files:
        if other.startswith(f"{name}.") and other.endswith(_PICKLE_ENDS):
            refuse_pickle(part.read(other, False)[:8], other)
    if f"{name}.safetensors" in part.files:
        return CheckpointCorruptError(f"the checkpoint lacks the file '{name}.json': it holds {sorted(part.files)}.")
    return CheckpointMismatchError(
        f"the checkpoint has no component {name!r}: it holds {component_names(part)}. Leave it out of the state, or name it "
        "as it was saved."
    )


def _checked_document(document: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(document, dict) or document.get("format") != FORMAT or "tree" not in document:
        raise CheckpointCorruptError(
            f"{what} is no component of a checkpoint: expected an object of format {FORMAT!r}."
        )
    version = document.get("version")
    if type(version) is not int or version < 1:
        raise CheckpointCorruptError(f"{what} has the format version {version!r}: expected a whole number.")
    if version > VERSION:
        raise CheckpointMismatchError(
            f"{what} has format version {version}: this trajload reads up to {VERSION}. Upgrade trajload."
        )
    if type(document.get("tensors")) is not int:
        raise CheckpointCorruptError(f"{what} does not tell how many tensors it has.")
    return document
