"""Crash-safe checkpoints of the demo's training: tensors as safetensors, everything else as JSON, nothing pickled.

A checkpoint is a folder `step-00000040`, written under a temporary name, synced, and renamed: after a SIGKILL or a
power cut there is either the whole folder or none. Digests in `state.json` are checked on loading, since a flipped
bit in a tensor file would otherwise go unnoticed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors.torch import load, save

from trajload.errors import ResumeError
from trajload.storage.atomic import fsync_dir, write_atomic

__all__ = ["Checkpoint", "latest", "load_checkpoint", "restore", "save_checkpoint", "weights_digest"]

_PREFIX = "step-"
_TENSORS = "tensors.safetensors"
_STATE = "state.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was saved: the loader's state, and where the tensors stand."""

    path: Path
    train_step: int
    """Train_steps done; the next one to run."""
    loader: dict[str, Any]
    optimizer: dict[str, Any]
    """The optimiser's state_dict without its tensors."""
    tensors: dict[str, torch.Tensor]


def save_checkpoint(
    folder: Path,
    *,
    train_step: int,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: Mapping[str, Any],
    keep: int = 2,
) -> Path:
    """Publish a checkpoint atomically and durably, then drop all but the newest `keep`."""
    tensors = {f"model.{name}": value.contiguous() for name, value in model.state_dict().items()}
    saved = optimizer.state_dict()
    plain: dict[str, Any] = {"param_groups": saved["param_groups"], "state": {}}
    for index, entries in saved["state"].items():
        for name, value in entries.items():
            if isinstance(value, torch.Tensor):
                tensors[f"optimizer.{index}.{name}"] = value.contiguous()
            else:
                plain["state"].setdefault(str(index), {})[name] = value
    tensor_bytes = save(tensors)
    state = {
        "format_version": 1,
        "train_step": train_step,
        "tensors_xxh3": xxhash.xxh3_128_hexdigest(tensor_bytes),
        "optimizer": plain,
        "loader": dict(loader),
    }
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"{_PREFIX}{train_step:08d}"
    temporary = folder / f".{final.name}.{os.getpid()}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    write_atomic(temporary / _TENSORS, tensor_bytes)
    write_atomic(temporary / _STATE, json.dumps(state, indent=1).encode())
    # A resumed run meets a checkpoint of the run that was killed only where both are at the same train_step, and then
    # they are equal; a folder cannot be renamed over one that holds files.
    shutil.rmtree(final, ignore_errors=True)
    temporary.rename(final)
    fsync_dir(folder)
    for old in _found(folder)[:-keep]:
        shutil.rmtree(old)
    return final


def latest(folder: Path) -> Path | None:
    """Return the newest complete checkpoint in `folder` by number, or None."""
    found = _found(folder)
    return found[-1] if found else None


def load_checkpoint(path: Path) -> Checkpoint:
    """Return the checkpoint at `path`, verified.

    Raises:
        ResumeError: It is incomplete, of another version, or its tensors differ from their digest.
    """
    try:
        state = json.loads((path / _STATE).read_bytes())
        tensor_bytes = (path / _TENSORS).read_bytes()
    except (OSError, ValueError) as err:
        raise ResumeError(f"checkpoint {str(path)!r} cannot be read: {err}. Use an older one.") from err
    if state.get("format_version") != 1:
        raise ResumeError(
            f"checkpoint {str(path)!r} has format version {state.get('format_version')!r}: expected 1. Start a new run."
        )
    digest = xxhash.xxh3_128_hexdigest(tensor_bytes)
    if digest != state["tensors_xxh3"]:
        raise ResumeError(
            f"checkpoint {str(path)!r} is damaged: its tensors have digest {digest}, expected {state['tensors_xxh3']}. "
            "Use an older one."
        )
    return Checkpoint(path, state["train_step"], state["loader"], state["optimizer"], load(tensor_bytes))


def restore(checkpoint: Checkpoint, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put a checkpoint's tensors back into `model` and `optimizer`."""
    weights, moments = {}, {int(index): dict(entries) for index, entries in checkpoint.optimizer["state"].items()}
    for name, value in checkpoint.tensors.items():
        kind, rest = name.split(".", 1)
        if kind == "model":
            weights[rest] = value
        else:
            index, entry = rest.split(".", 1)
            moments.setdefault(int(index), {})[entry] = value
    model.load_state_dict(weights)
    optimizer.load_state_dict({"state": moments, "param_groups": checkpoint.optimizer["param_groups"]})


def weights_digest(model: torch.nn.Module) -> str:
    """Return a hex digest of all parameters and buffers, by name."""
    state = {name: value.contiguous() for name, value in sorted(model.state_dict().items())}
    return xxhash.xxh3_128_hexdigest(save(state))


def _found(folder: Path) -> list[Path]:
    """Return complete checkpoints, oldest first, ordered by number and not by name."""
    found = [p for p in folder.glob(f"{_PREFIX}*") if p.name.removeprefix(_PREFIX).isdigit()]
    return sorted(found, key=lambda p: int(p.name.removeprefix(_PREFIX)))
