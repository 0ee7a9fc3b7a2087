"""What a training did, leaf by leaf, so that two runs can be compared exactly and a difference has a name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from trajload.checkpoint import facts, sharded
from trajload.checkpoint.components import Component, take
from trajload.checkpoint.tree import flatten
from trajload.collate.batch import Batch

__all__ = ["leaves_of", "value_of"]


def leaves_of(state: Mapping[str, Any]) -> dict[str, str]:
    """Return path → value or digest of everything in the components: parameters, moments, counters, random streams.

    Of loaders only what decides the batches to come: how many are under way is a matter of time. Sharded tensors are
    those of this rank.
    """
    plain, spread = sharded.split(state)
    found: dict[str, str] = {}
    loaders = facts.loaders_of(plain)
    for name, component in plain.items():
        if name in loaders:
            kept = {field: loaders[name][field] for field in ("manifests", "config_digest", "cursor", "quarantine")}
            found.update(_of_tree(name, kept))
            found[f"{name}.next_batch"] = _next_batch(component)
        else:
            found.update(_of_tree(name, take(name, component)))
    for name, one in spread.items():
        found.update(_of_tree(name, take(name, Component(lambda one=one: one.tree, lambda _: None))))  # type: ignore[misc]
        for path, tensor in one.tensors.items():
            found[path.replace("/", ".")] = _digest(tensor.to_local() if hasattr(tensor, "to_local") else tensor)
    return found


def _next_batch(loader: Any) -> str:
    loader = loader if hasattr(loader, "batch_at") else getattr(loader, "loader", loader)
    if loader.num_train_steps is not None and loader.train_step >= loader.num_train_steps:
        return "none"
    return str(loader.batch_at(loader.train_step).digest())


def _of_tree(name: str, tree: Any) -> dict[str, str]:
    tensors, plain = flatten(tree, path=name)
    found = {f"{name}.{key}": _digest(tensor) for key, tensor in tensors.items()}
    found.update({f"{name}{path}": text for path, text in _plain_leaves(plain, "") if "$tensor" not in path})
    return found


def _plain_leaves(plain: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(plain, dict):
        for key, value in plain.items():
            yield from _plain_leaves(value, f"{path}.{key}")
    elif isinstance(plain, list) and len(plain) <= 64:
        for i, value in enumerate(plain):
            yield from _plain_leaves(value, f"{path}[{i}]")
    else:
        yield path, repr(plain) if len(repr(plain)) <= 80 else hashlib.sha256(repr(plain).encode()).hexdigest()[:32]


def _digest(tensor: Tensor) -> str:
    data = tensor.detach().cpu().contiguous()
    digest = hashlib.blake2b(f"{data.dtype} {list(data.shape)} ".encode(), digest_size=16)
    digest.update(data.reshape(-1).view(torch.uint8).numpy().tobytes() if data.numel() else b"")
    return digest.hexdigest()


def value_of(value: Any) -> Any:
    """Return a JSON form of what a step returned, from which no bit is missing."""
    if isinstance(value, Batch):
        return f"batch {value.train_step} {value.digest()}"
    if isinstance(value, Tensor):
        return float(value.item()).hex() if value.numel() == 1 and value.is_floating_point() else _digest(value)
    if isinstance(value, Mapping):
        return {str(key): value_of(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [value_of(item) for item in value]
    if isinstance(value, bool) or value is None or isinstance(value, (int, str)):
        return value
    if isinstance(value, float):
        return value.hex()
    if hasattr(value, "tobytes") and hasattr(value, "dtype"):
        return f"{value.dtype} {hashlib.blake2b(value.tobytes(), digest_size=16).hexdigest()}"
    return repr(value)
