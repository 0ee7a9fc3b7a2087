"""Putting a checkpoint back: everything is read and compared first; nothing is changed unless all of it fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from trajload.arguments import explains_calls
from trajload.checkpoint.capture import Snapshot, snapshot
from trajload.checkpoint.components import check_names, kind_of, parameter_names
from trajload.checkpoint.fit import Fit, compare
from trajload.checkpoint.in_place import assign
from trajload.checkpoint.reader import PartReader
from trajload.checkpoint.saved import Saved, read_saved, saved_of
from trajload.errors import CheckpointError, CheckpointMismatchError, ConfigError, ResumeError, described

__all__ = ["restore", "restore_snapshot"]

_MOST_LINES = 40
_LAST = ("optimizer", "module")
"""Kinds that are compared so closely that loading them does not fail; the others go first, and can be taken back."""


@explains_calls
def restore(
    state: Mapping[str, Any],
    reader: PartReader | Mapping[str, PartReader],
    *,
    strict: bool = True,
    allow_data_change: bool = False,
    verify: bool = True,
) -> list[str]:
    """Bring every component of `state` to what a checkpoint holds, or change nothing and raise.

    Args:
        state: As for `snapshot`. Components that only the checkpoint has are left alone.
        reader: The part to read, or one for each component where several ranks wrote them.
        strict: False accepts names that only one side has, and classes that differ, and returns them. Shapes and dtypes of
            what both have must be equal all the same: nothing is cast.
        allow_data_change: Let loaders go on with another version of the dataset (its digest and number of windows).
        verify: Compare sizes and digests of the files first. False where that has just been done.

    Returns:
        A line for each difference that was accepted.

    Raises:
        CheckpointMismatchError: The checkpoint is of another program: components, names, shapes and dtypes that differ are
            listed; of another dataset or sampler version; of a newer format; or a pickle.
        CheckpointCorruptError: A file is damaged or missing.
    """
    check_names(state)
    saved = {}
    for name in state:
        part = reader if isinstance(reader, PartReader) else reader.get(name)
        if part is None:
            raise ConfigError(f"reader has no part for component {name!r}: it has {sorted(reader)}.")  # type: ignore[arg-type]
        saved[name] = read_saved(part, name, verify=verify)
    return _put_back(state, saved, strict, allow_data_change)


def restore_snapshot(state: Mapping[str, Any], held: Snapshot) -> list[str]:
    """Bring every component back to a snapshot that is still held; as `restore`, which see."""
    return _put_back(state, {name: saved_of(held.taken[name]) for name in state}, True, False)


def _put_back(state: Mapping[str, Any], saved: Mapping[str, Saved], strict: bool, data_change: bool) -> list[str]:
    fit, names = Fit(strict), parameter_names(state)
    for name, live in state.items():
        compare(name, live, saved[name], names, fit)
    for name, live in state.items():
        if kind_of(name, live) == "callable" and live.check is not None:
            try:
                live.check(saved[name].state())
            except Exception as err:
                fit.wrong(f"{name}: {err if isinstance(err, (ResumeError, CheckpointError)) else described(err)}")
    if fit.problems:
        raise _mismatch(fit.problems)
    order = sorted(state, key=lambda name: _LAST.index(kind) if (kind := kind_of(name, state[name])) in _LAST else -1)
    _load_all({name: state[name] for name in order}, saved, strict, data_change)
    return fit.notes


def _mismatch(lines: list[str]) -> CheckpointMismatchError:
    more = [] if len(lines) <= _MOST_LINES else [f"and {len(lines) - _MOST_LINES} more"]
    return CheckpointMismatchError(
        "the checkpoint does not fit this program; nothing was changed. Differing:\n  - "
        + "\n  - ".join([*lines[:_MOST_LINES], *more])
        + "\nBuild the components as they were saved, or choose another checkpoint."
    )


def _load_all(ordered: Mapping[str, Any], saved: Mapping[str, Saved], strict: bool, data_change: bool) -> None:
    before: list[tuple[str, Snapshot | None]] = []
    for name, live in ordered.items():
        kind = kind_of(name, live)
        if kind not in _LAST:
            before.append((name, _now(name, live)))
        try:
            _load(kind, live, saved[name], strict, data_change)
        except BaseException as err:
            lost = _take_back(ordered, before) if kind not in _LAST else [*ordered][: [*ordered].index(name) + 1]
            if not isinstance(err, Exception):
                raise
            raise _failed(name, err, lost) from err


def _now(name: str, live: Any) -> Snapshot | None:
    """Return what a component holds, or None where it holds nothing yet that can be taken."""
    try:
        return snapshot({name: live})
    except Exception:
        return None


def _take_back(ordered: Mapping[str, Any], before: list[tuple[str, Snapshot | None]]) -> list[str]:
    """Give components what they had; return the names of those that would not take it."""
    lost = []
    for name, held in reversed(before):
        if held is None:
            lost.append(name)
            continue
        try:
            _load(kind_of(name, ordered[name]), ordered[name], saved_of(held.taken[name]), True, False)
        except Exception:
            lost.append(name)
    return lost


def _failed(name: str, err: Exception, lost: list[str]) -> CheckpointError:
    ending = (
        f"Components {lost} may now hold parts of the checkpoint: build them anew."
        if lost
        else "All components are as they were before."
    )
    said = err.message if isinstance(err, (ResumeError, CheckpointError)) else described(err)
    kind = CheckpointMismatchError if isinstance(err, ResumeError) else CheckpointError
    return kind(f"component {name!r} does not take the saved state: {said}\n{ending}")


def _load(kind: str, live: Any, saved: Saved, strict: bool, data_change: bool) -> None:
    state = saved.state()
    if kind == "module":
        live.load_state_dict(state, strict=strict)
    elif kind == "optimizer":
        _load_optimizer(live, state)
    elif kind == "callable":
        live.set(state)
    elif kind == "tree":
        if assign(live, state) is not live:
            raise CheckpointMismatchError(
                f"the live {type(live).__name__} cannot hold what was saved: another shape, dtype or maxlen, or it is read-only."
            )
    else:
        _load_stateful(live, state, strict, data_change)


def _load_stateful(live: Any, state: Any, strict: bool, data_change: bool) -> None:
    load: Callable[..., Any] = live.load_state_dict
    if type(live).__module__.startswith("trajload."):
        if data_change and isinstance(state, Mapping) and "manifests" in state:
            load(state, allow=_data_fields(state["config"], live.state_dict()["config"]))
            return
        if hasattr(live, "differing_streams"):
            load(state, strict=strict)
            return
    load(state)


def _data_fields(saved: Mapping[str, Any], here: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fields of a loader's state that follow from the dataset: what may differ with another version of it."""
    own = ("num_windows", "dropped")

    def chosen(config: Mapping[str, Any]) -> Any:
        sources = config.get("sources") or {}
        return {name: {k: v for k, v in source.items() if k not in own} for name, source in sources.items()}

    fields = [name for name in own if name in saved or name in here]
    if "sources" in saved and "sources" in here and chosen(saved) == chosen(here):
        fields.append("sources")
    return ("manifests", *fields)


def _load_optimizer(live: torch.optim.Optimizer, state: Any) -> None:
    settings = [dict(group) for group in live.param_groups]
    live.load_state_dict(state)
    parameters = [p for group in live.param_groups for p in group["params"]]
    # torch casts the moments to the parameter's dtype; those of an optimiser that keeps them in float32 would lose bits.
    saved = state.get("state", {}) if isinstance(state, Mapping) else {}
    for key, values in saved.items():
        owner = parameters[key] if type(key) is int and key < len(parameters) else key
        if owner in live.state and isinstance(values, dict) and isinstance(live.state[owner], dict):
            live.state[owner] = {name: _exact(live.state[owner].get(name, item), item) for name, item in values.items()}
    # A learning rate that is a tensor lives where it lived before, not on the CPU that it was saved from.
    for group, old in zip(live.param_groups, settings, strict=True):
        for name, value in group.items():
            if isinstance(value, Tensor) and isinstance(old.get(name), Tensor):
                group[name] = value.to(old[name].device)


def _exact(loaded: Any, saved: Any) -> Any:
    """Return `loaded`, with tensors whose dtype was changed replaced by the saved ones on the same device."""
    if isinstance(saved, Tensor) and isinstance(loaded, Tensor):
        return loaded if loaded.dtype == saved.dtype else saved.to(loaded.device)
    if isinstance(saved, dict) and isinstance(loaded, dict):
        return {name: _exact(loaded.get(name, item), item) for name, item in saved.items()}
    if type(saved) is list and type(loaded) is list and len(saved) == len(loaded):
        return [_exact(one, item) for one, item in zip(loaded, saved, strict=True)]
    return loaded
