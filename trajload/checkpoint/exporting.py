"""Export: the weights of a checkpoint as a folder that other tools read, safetensors and config.json, and nothing to unpickle.

Apart from recovery on purpose: an export has weights only, in the names and the layout that loaders of the Hugging Face kind
expect (tied weights once, large models in numbered files with an index), and no training can go on from it.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from trajload.arguments import explains_calls
from trajload.checkpoint.disk import MAX_PIECE_BYTES, Bytes
from trajload.checkpoint.fit import plain_keys
from trajload.checkpoint.new_folder import publish_folder
from trajload.checkpoint.reader import PartReader
from trajload.checkpoint.saved import Saved, read_saved
from trajload.checkpoint.sharded import pieces_of
from trajload.checkpoint.tensor_file import TensorFile, refuse_pickle
from trajload.checkpoint.tensors import FORMAT_NAMES, dtype_name, plan_layout, tensor_chunks
from trajload.errors import CheckpointError, ConfigError
from trajload.types import PathLikeStr

__all__ = ["Exported", "export"]

MAX_FILE_BYTES = 5_000_000_000
"""Larger models are divided: what hubs accept, and what readers load file by file."""
_KNOWN = {dtype_name(dtype) for dtype in FORMAT_NAMES}
_PICKLE_ENDS = (".pt", ".pth", ".bin", ".pkl", ".pickle", ".ckpt", ".npy", ".npz", ".joblib")


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote."""

    folder: Path
    files: tuple[str, ...]
    bytes: int
    left_out: tuple[str, ...]
    """Names of the component that are no tensors, or lack the prefix."""


@explains_calls
def export(
    part: PartReader,
    folder: PathLikeStr,
    *,
    component: str = "model",
    config: Any = None,
    prefix: str = "",
    extra: Sequence[PathLikeStr] = (),
    max_file_bytes: int = MAX_FILE_BYTES,
) -> Exported:
    """Write the tensors of a component as `model.safetensors` and `config.json` into a new folder.

    The folder appears at once and whole, or not at all.

    Args:
        part: Of a commit: `store.part(commit, 0)`. Its bytes are verified first.
        folder: Must not exist, or be empty.
        component: Whose tensors.
        config: For config.json: a mapping, a dataclass, an object with `to_dict()` (as configurations of transformers), or the
            path of a JSON file. None writes the name of the class only.
        prefix: Only names that begin so, which they lose: 'module.' for an `AveragedModel`.
        extra: Files to copy beside: of a tokenizer, a licence, a model card. Pickles are refused.
        max_file_bytes: More tensors are divided among files of at most so many bytes each, where single tensors allow it.

    Raises:
        ConfigError: The folder holds something, the prefix fits no tensor, a file of `extra` is a pickle or would overwrite another.
        CheckpointMismatchError, CheckpointCorruptError: The component is not in the checkpoint, or damaged.
        CheckpointError: A dtype has no name in the format, or the system refused to write.
    """
    target = Path(os.path.realpath(os.fspath(folder)))
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"folder {os.fspath(folder)!r} exists and is not empty: give a new one.")
    copied = _checked_extra(extra)
    saved = read_saved(part, component)
    if any(path.startswith(f"{component}/") for path, _, _ in pieces_of(part)):
        raise ConfigError(
            f"component {component!r} is sharded over ranks, and one part holds only pieces of it. Load it with a Checkpointer, put it "
            "together (FSDP2: get_model_state_dict with full_state_dict=True), and save that as a component of a store of its own."
        )
    names = {name: name.removeprefix(prefix) for name in saved.facts if name.startswith(prefix)}
    if not names or "" in names.values():
        raise ConfigError(
            f"prefix={prefix!r} fits no tensor of component {component!r}: it has {_some(list(saved.facts))}."
        )
    odd = [name for name in names if saved.facts[name].dtype not in _KNOWN]
    if odd:
        raise CheckpointError(f"tensor {odd[0]!r} is {saved.facts[odd[0]].dtype}, which other readers do not know.")
    files: dict[str, Iterable[Bytes]] = {"config.json": [_config_bytes(config, saved)]}
    metadata = {"trajload.part": part.summary.digest}
    with part.guarded(), TensorFile(part.path(f"{component}.safetensors"), name=component) as source:
        files.update(_weight_files(source, names, metadata, max_file_bytes))
        clash = sorted(set(files) & set(copied))
        if clash:
            raise ConfigError(f"extra files {clash} have names of the export's own.")
        files.update({name: _pieces(path) for name, path in copied.items()})
        total = publish_folder(target, files)
    left_out = [*(name for name in saved.facts if name not in names), *plain_keys(saved.plain)]
    return Exported(target, tuple(sorted(files)), total, tuple(left_out))


def _some(names: list[str]) -> str:
    return repr(names if len(names) <= 5 else [*names[:5], "…"])


# ---- weights ----


def _weight_files(
    source: TensorFile, names: Mapping[str, str], metadata: Mapping[str, str], max_file_bytes: int
) -> dict[str, Iterable[Bytes]]:
    """Return the files of the weights, as streams that read one file's tensors at a time."""
    places, same = source.index.places, source.index.same
    first: dict[str, str] = {}  # of names that are one tensor the first is written, the others are told in the metadata
    aliases: dict[str, str] = {}
    for name, outer in names.items():
        own = same.get(name, name)
        if first.setdefault(own, outer) != outer:
            aliases[outer] = first[own]
    own_of = {outer: own for own, outer in first.items()}
    size = {outer: places[own].end - places[own].begin for outer, own in own_of.items()}
    groups: list[list[str]] = [[]]
    filled = 0
    for outer, count in size.items():
        if groups[-1] and filled + count > max_file_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(outer)
        filled += count
    if len(groups) == 1:
        return {"model.safetensors": _stream(source, groups[0], own_of, {**metadata, **aliases})}
    files: dict[str, Iterable[Bytes]] = {}
    weight_map = {}
    for i, group in enumerate(groups, 1):
        file = f"model-{i:05d}-of-{len(groups):05d}.safetensors"
        here = {alias: name for alias, name in aliases.items() if name in group}
        files[file] = _stream(source, group, own_of, {**metadata, **here})
        weight_map.update(dict.fromkeys(group, file))
    index = {"metadata": {"total_size": sum(size.values())}, "weight_map": weight_map}
    files["model.safetensors.index.json"] = [_json(index)]
    return files


def _stream(
    source: TensorFile, outer_names: Sequence[str], own_of: Mapping[str, str], metadata: Mapping[str, str]
) -> Iterator[Bytes]:
    found = source.read([own_of[outer] for outer in outer_names])
    tensors: dict[str, Tensor] = {outer: found[own_of[outer]].contiguous() for outer in outer_names}
    yield from tensor_chunks(tensors, plan_layout(tensors, metadata))


# ---- everything else ----


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _config_bytes(config: Any, saved: Saved) -> bytes:
    if config is None:
        config = {"architectures": [str(saved.about.get("type", "")).rpartition(".")[2]]}
    elif isinstance(config, (str, os.PathLike)):
        try:
            config = json.loads(Path(config).read_bytes())
        except (OSError, ValueError) as err:
            raise ConfigError(f"config file {os.fspath(config)!r} cannot be read as JSON: {err}.") from err
    elif dataclasses.is_dataclass(config) and not isinstance(config, type):
        config = dataclasses.asdict(config)
    elif callable(getattr(config, "to_dict", None)):
        config = config.to_dict()
    if not isinstance(config, Mapping):
        raise ConfigError(f"config is a {type(config).__name__}: expected a mapping, a dataclass, or a path of JSON.")
    try:
        return _json(dict(config))
    except (TypeError, ValueError) as err:
        raise ConfigError(f"config cannot be written as JSON: {err}.") from err


def _checked_extra(extra: Sequence[PathLikeStr]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for given in extra:
        path = Path(given)
        if path.suffix.lower() in _PICKLE_ENDS:
            raise ConfigError(f"extra file {str(path)!r} may hold a pickle: exports hold nothing that could run code.")
        try:
            with open(path, "rb") as handle:
                begin = handle.read(8)
            if path.suffix.lower() == ".safetensors":
                TensorFile(path).__exit__()  # whose first bytes may be those of a pickle; raises where it is none
            else:
                refuse_pickle(begin, str(path))
        except OSError as err:
            raise ConfigError(f"extra file {str(path)!r} cannot be read: {err.strerror or err}.") from err
        if path.name in found:
            raise ConfigError(f"two extra files are called {path.name!r}.")
        found[path.name] = path
    return found


def _pieces(path: Path) -> Iterator[Bytes]:
    with open(path, "rb") as handle:
        while piece := handle.read(MAX_PIECE_BYTES):
            yield piece
