"""Tensors that are spread over ranks (DTensor, ShardedTensor): written and resharded by torch.distributed.checkpoint.

torch plans which piece of which tensor is this rank's, and writes the pieces; the store then adopts the files: syncs them,
takes their digests, and commits them with everything else. Each rank plans and writes for itself, without collectives, so
a save may run in the background, and a rank that dies holds up nobody. torch's own index of a checkpoint, a pickle, is
neither written nor read: `sharded.json` of each part says the same. Loading plans anew, so the number of ranks and the way
tensors are cut may be other ones. See docs/decisions/0132-sharded-tensors.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajload.errors import CheckpointCorruptError, CheckpointMismatchError

if TYPE_CHECKING:
    import torch
    from torch.distributed.checkpoint.planner import WriteItem

__all__ = ["INDEX_FILE", "Sharded", "Shards", "pieces_of", "read_index", "split"]

INDEX_FILE = "sharded.json"
_FOLDER = "dcp"
_MARK = "trajload.sharded"
"""Key of what stands in a component's tree in place of a sharded tensor."""


def _is_sharded(value: Any) -> bool:
    """Whether a value is one of torch's tensors that hold only a piece; importing nothing that is not imported."""
    kinds = (("torch.distributed.tensor", "DTensor"), ("torch.distributed._shard.sharded_tensor", "ShardedTensor"))
    found = (getattr(sys.modules.get(module), kind, None) for module, kind in kinds)
    return any(kind is not None and isinstance(value, kind) for kind in found)


def _leaves(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _leaves(value, f"{path}/{key}")
    elif isinstance(tree, (list, tuple)):
        for i, value in enumerate(tree):
            yield from _leaves(value, f"{path}/{i}")
    else:
        yield path, tree


def _replaced(tree: Any, path: str, change: Callable[[str, Any], Any]) -> Any:
    """Return a copy of the tree with every leaf and mark given to `change`."""
    if isinstance(tree, Mapping) and _MARK not in tree:
        items = {key: _replaced(value, f"{path}/{key}", change) for key, value in tree.items()}
        return items
    if isinstance(tree, (list, tuple)):
        return type(tree)(_replaced(value, f"{path}/{i}", change) for i, value in enumerate(tree))
    return change(path, tree)


def _marked(path: str, value: Any) -> Any:
    if not _is_sharded(value):
        return value
    return {_MARK: path, "shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}


@dataclass(frozen=True, slots=True)
class Sharded:
    """One component with sharded tensors, as it is at the moment."""

    name: str
    component: Any
    tree: Any
    """Its state_dict, with marks in place of sharded tensors."""
    tensors: dict[str, Any]
    """Path → sharded tensor."""


def split(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Sharded]]:
    """Return the components without sharded tensors, and the others."""
    if not any(m in sys.modules for m in ("torch.distributed.tensor", "torch.distributed._shard.sharded_tensor")):
        return dict(state), {}
    from trajload.checkpoint.components import take

    plain, sharded = {}, {}
    for name, component in state.items():
        tree = take(name, component)
        tensors = {path: value for path, value in _leaves(tree, name) if _is_sharded(value)}
        if tensors:
            sharded[name] = Sharded(name, component, _replaced(tree, name, _marked), tensors)
        else:
            plain[name] = component
    return plain, sharded


def unsharded(name: str, component: Any) -> Sharded:
    """Return a component that has no sharded tensors yet: an optimiser before its first update."""
    from trajload.checkpoint.components import take

    return Sharded(name, component, take(name, component), {})


# ---- saving ----


class Shards:
    """This rank's pieces of all sharded tensors at one moment; `write` puts them into a part.

    Args:
        components: As `split` gives them.
        copy: Whether to copy the pieces, so that training may go on before `write`.
    """

    def __init__(self, components: Mapping[str, Sharded], *, copy: bool) -> None:
        from torch.distributed.checkpoint.default_planner import create_default_local_save_plan
        from torch.distributed.checkpoint.utils import find_state_dict_object

        tensors = {path: value for one in components.values() for path, value in one.tensors.items()}
        plan = create_default_local_save_plan(tensors, is_coordinator=False)
        self._items: list[WriteItem] = []
        self._data: dict[Any, torch.Tensor] = {}
        self.bytes = 0
        for item in plan.items:
            if not _is_first_copy(tensors[item.index.fqn]) or item.tensor_data is None:
                continue
            if not item.tensor_data.chunk.sizes.numel():
                continue  # more ranks than rows: nothing is here
            piece = find_state_dict_object(tensors, item.index).detach()
            self._items.append(item)
            self._data[item.index] = piece.to("cpu", copy=True) if copy else piece
            self.bytes += piece.numel() * piece.element_size()
        # Of all tensors, also where no piece is here: a reader then knows that nothing was forgotten.
        self._facts = {
            path: {"size": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
            for path, value in tensors.items()
        }

    @property
    def count(self) -> int:
        """Pieces of this rank."""
        return len(self._items)

    def write(self, part: Any) -> None:
        """Let torch write the pieces, take its files in, and write the index of them."""
        from torch.distributed.checkpoint.filesystem import FileSystemWriter
        from torch.distributed.checkpoint.planner import SavePlan

        chunks: dict[str, list[dict[str, Any]]] = {path: [] for path in self._facts}
        if self._items:
            folder = part.make_folder(_FOLDER)
            # The store syncs what it adopts; torch would sync a file before it has flushed it.
            writer = FileSystemWriter(folder, sync_files=False)
            writer.set_up_storage_writer(True)
            [plan] = writer.prepare_global_plan([writer.prepare_local_plan(SavePlan(self._items))])
            sizes = {item.index: item.tensor_data.chunk.sizes for item in self._items if item.tensor_data is not None}
            for done in writer.write_data(plan, _saver(self._data)).wait():
                where = done.storage_data
                chunks[done.index.fqn].append(
                    {
                        "offsets": list(done.index.offset or ()),
                        "sizes": list(sizes[done.index]),
                        "file": f"{_FOLDER}/{where.relative_path}",
                        "offset": where.offset,
                        "length": where.length,
                    }
                )
            part.adopt(_FOLDER)
        tensors = {path: {**facts, "chunks": chunks[path]} for path, facts in self._facts.items()}
        part.write(INDEX_FILE, [json.dumps({"v": 1, "tensors": tensors}, sort_keys=True).encode()])


def _is_first_copy(tensor: Any) -> bool:
    """Whether this rank writes its piece of a tensor: where a mesh holds copies, only the first of them is written."""
    mesh = getattr(tensor, "device_mesh", None)
    if mesh is None:
        return True
    coordinate = mesh.get_coordinate()
    return coordinate is not None and all(
        place == 0 or not placement.is_replicate()
        for place, placement in zip(coordinate, tensor.placements, strict=True)
    )


def _saver(data: Mapping[Any, torch.Tensor]) -> Any:
    """Return a planner that gives torch's writer the pieces as they were copied."""
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    class Copied(DefaultSavePlanner):
        def resolve_data(self, write_item: WriteItem) -> torch.Tensor:
            return data[write_item.index]

    return Copied()


# ---- loading ----


def read_index(readers: Mapping[int, Any]) -> dict[str, dict[str, Any]]:
    """Return path → {size, dtype, chunks} of all parts of a commit, each chunk with the path of its file.

    Raises:
        CheckpointCorruptError: Pieces are missing or overlap.
    """
    tensors: dict[str, dict[str, Any]] = {}
    for reader in readers.values():
        if INDEX_FILE not in reader.files:
            continue
        for path, facts in json.loads(reader.read(INDEX_FILE))["tensors"].items():
            entry = tensors.setdefault(path, {"size": facts["size"], "dtype": facts["dtype"], "chunks": []})
            entry["chunks"] += [{**chunk, "path": str(reader.path(chunk["file"]))} for chunk in facts["chunks"]]
    for path, facts in tensors.items():
        have, want = sum(_volume(chunk["sizes"]) for chunk in facts["chunks"]), _volume(facts["size"])
        if have != want:
            raise CheckpointCorruptError(f"sharded tensor {path!r} has {have} of {want} elements in the checkpoint.")
    return tensors


def pieces_of(part: Any) -> dict[tuple[str, tuple[int, ...], tuple[int, ...]], tuple[str, str]]:
    """Return (path, offsets, sizes) → (dtype, digest) of the pieces that a part holds; the digest is of the piece as it is stored.

    Raises:
        CheckpointCorruptError: A file is damaged.
    """
    from trajload.checkpoint.digests import digest_bytes

    if INDEX_FILE not in part.files:
        return {}
    found, checked = {}, set()
    for path, facts in json.loads(part.read(INDEX_FILE))["tensors"].items():
        for chunk in facts["chunks"]:
            if chunk["file"] not in checked:
                checked.add(chunk["file"])
                for _ in part.chunks(chunk["file"]):
                    pass  # read to the end, it is verified
            with part.guarded(), part.path(chunk["file"]).open("rb") as file:
                file.seek(chunk["offset"])
                digest = digest_bytes(file.read(chunk["length"]))
            found[path, tuple(chunk["offsets"]), tuple(chunk["sizes"])] = facts["dtype"], digest
    return found


def _volume(sizes: list[int]) -> int:
    volume = 1
    for size in sizes:
        volume *= size
    return volume


def targets_of(saved_tree: Any, sharded: Sharded, index: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return path → sharded tensor to load into, for each mark of a saved tree: the live one, or one made like its parameter.

    Raises:
        CheckpointMismatchError: A tensor is missing here or there, or of another shape or dtype; all are listed.
    """
    marks = {path: mark for path, mark in _leaves_and_marks(saved_tree, sharded.name) if _is_mark(mark)}
    targets, wrong = {}, []
    for path in marks:
        facts = index.get(path)
        live = sharded.tensors.get(path)
        if live is None and facts is not None:
            live = _like_parameter(sharded.component, path, facts)
        if facts is None or live is None:
            wrong.append(f"{path}: {'not among the saved pieces' if facts is None else 'not sharded here'}")
            continue
        here = {"size": list(live.shape), "dtype": str(live.dtype).removeprefix("torch.")}
        wrong += [f"{path}: {k} saved {facts[k]!r}, here {v!r}" for k, v in here.items() if facts[k] != v]
        targets[path] = live
    wrong += [f"{path}: sharded here, not in the checkpoint" for path in sharded.tensors if path not in marks]
    wrong += _differing_whole(saved_tree, sharded)
    if wrong:
        raise CheckpointMismatchError("the checkpoint does not fit. Differing:\n  - " + "\n  - ".join(wrong))
    return targets


def _differing_whole(saved_tree: Any, sharded: Sharded) -> list[str]:
    """Return a line for each tensor beside the sharded ones that has another shape or dtype: torch would cast or replace it."""
    import torch

    live = dict(_leaves_and_marks(sharded.tree, sharded.name))
    lines = []
    for path, saved in _leaves_and_marks(saved_tree, sharded.name):
        here = live.get(path)
        if not isinstance(saved, torch.Tensor) or not isinstance(here, torch.Tensor) or not here.numel():
            continue  # absent so far, or empty: nothing that another shape contradicts
        if (saved.shape, saved.dtype) != (here.shape, here.dtype):
            facts = (f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for t in (saved, here))
            lines.append("{}: saved {}, here {}".format(path, *facts))
    return lines


def _is_mark(value: Any) -> bool:
    return isinstance(value, Mapping) and _MARK in value


def _leaves_and_marks(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    _replaced(tree, path, lambda at, value: found.append((at, value)))
    yield from found


def _like_parameter(component: Any, path: str, facts: Mapping[str, Any]) -> Any:
    """Return an empty tensor cut like the parameter that an optimiser's entry belongs to: before the first update it has none."""
    import torch

    steps = path.split("/")
    if not isinstance(component, torch.optim.Optimizer) or len(steps) != 4 or steps[1] != "state":
        return None
    parameters = [p for group in component.param_groups for p in group["params"]]
    number = int(steps[2]) if steps[2].isdigit() else len(parameters)
    if number >= len(parameters) or list(parameters[number].shape) != facts["size"]:
        return None
    return torch.empty_like(parameters[number].detach(), dtype=getattr(torch, facts["dtype"]))


def load_pieces(targets: Mapping[str, Any], index: Mapping[str, Mapping[str, Any]]) -> None:
    """Read into `targets` what of each tensor belongs to this rank now, from wherever it lies."""
    import torch
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        TensorProperties,
        TensorStorageMetadata,
    )

    described: dict[str, Any] = {}
    stored = {}
    for path in targets:
        facts = index[path]
        chunks = [ChunkStorageMetadata(torch.Size(c["offsets"]), torch.Size(c["sizes"])) for c in facts["chunks"]]
        properties = TensorProperties(dtype=getattr(torch, facts["dtype"]))
        described[path] = TensorStorageMetadata(properties, torch.Size(facts["size"]), chunks)
        for chunk in facts["chunks"]:
            place = MetadataIndex(path, torch.Size(chunk["offsets"]))
            stored[place] = _StorageInfo(chunk["path"], chunk["offset"], chunk["length"])
    metadata = Metadata(described, storage_data=stored)
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(targets), metadata, False)
    reader = FileSystemReader(Path("/"))  # the index names each file in full
    reader.set_up_storage_reader(metadata, False)
    reader.read_data(planner.finish_plan(planner.create_local_plan()), planner).wait()


def filled(saved_tree: Any, name: str, targets: Mapping[str, Any]) -> Any:
    """Return a saved tree with its marks replaced by the tensors that were loaded."""
    return _replaced(saved_tree, name, lambda path, value: targets[path] if _is_mark(value) else value)
