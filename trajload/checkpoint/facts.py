"""What can be said of a training state without saving it: versions, loaders, counters, and what ranks must agree on."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Mapping
from operator import index
from typing import Any

from trajload.checkpoint.exposure import loader_of
from trajload.errors import ConfigError, described

__all__ = [
    "agreement",
    "checked_epoch",
    "differing_versions",
    "epoch_of",
    "loader_info",
    "loaders_of",
    "of_save",
    "structure_of",
    "versions",
]

_LOADER_FIELDS = ("format_version", "manifests", "config", "config_digest", "cursor")
"""What tells the state of a `trajload.Loader`, or of a dataloader made of one, from others."""


def versions() -> dict[str, Any]:
    """Return software and hardware that numbers may depend on."""
    own = getattr(sys.modules["trajload"], "__version__", None)
    found: dict[str, Any] = {"trajload": own, "python": platform.python_version(), "machine": platform.machine()}
    for name in ("torch", "numpy"):
        module = sys.modules.get(name)
        if module is not None:
            found[name] = str(module.__version__)
    torch = sys.modules.get("torch")
    if torch is not None:
        found["threads"] = torch.get_num_threads()
        found["deterministic"] = torch.are_deterministic_algorithms_enabled()
        if torch.cuda.is_initialized():
            found["cuda"] = str(torch.version.cuda)
            found["devices"] = sorted({torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())})
    return found


def differing_versions(saved: Any) -> list[str]:
    """Return a line for each entry of `versions()` that was another when a checkpoint was saved."""
    here = versions()
    if not isinstance(saved, Mapping):
        return []
    return [
        f"{name}: saved with {saved[name]!r}, here {here[name]!r}"
        for name in sorted({*saved, *here})
        if name in saved and name in here and saved[name] != here[name]
    ]


def loaders_of(state: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the state of every loader among the components, by name, and the digest of its order; a few KiB each."""
    found = {}
    for name, component in state.items():
        if hasattr(component, "load_state_dict") and (
            hasattr(component, "steps_per_epoch") or _is_dataloader(component)
        ):
            saved = component.state_dict()
            if isinstance(saved, Mapping) and all(field in saved for field in _LOADER_FIELDS):
                digest = loader_of(component).order_digest(saved["cursor"]["train_step"])
                found[name] = {**saved, "order_digest": digest}
    return found


def _is_dataloader(component: Any) -> bool:
    return any(c.__module__.startswith("trajload.interop") for c in type(component).__mro__)


def epoch_of(state: Mapping[str, Any]) -> int | None:
    """Return the epoch that the first loader among the components has come to, or None where there is none."""
    for component in state.values():
        loader = getattr(component, "loader", component)
        steps = getattr(loader, "steps_per_epoch", None)
        if isinstance(steps, (int, float)) and steps > 0 and isinstance(getattr(loader, "train_step", None), int):
            return int(loader.train_step // steps)
    return None


def checked_epoch(state: Mapping[str, Any], epoch: int | None, metrics: Mapping[str, float] | None) -> int | None:
    """Return the epoch that was told, or else that of the first loader; what a caller told of a save is looked at.

    Raises:
        ConfigError: `epoch` is no count, or `metrics` no numbers by name.
    """
    try:
        told = None if epoch is None else index(epoch)
    except TypeError:
        told = -1
    if (told is not None and told < 0) or isinstance(epoch, bool):
        raise ConfigError(f"epoch={epoch!r} is invalid: expected a whole number of at least 0, or None.")
    if metrics is not None and not isinstance(metrics, Mapping):
        raise ConfigError(f"metrics is a {type(metrics).__name__}: expected name → number, such as {{'loss': 0.5}}.")
    for name, value in (metrics or {}).items():
        try:
            float(value)
        except (TypeError, ValueError, OverflowError, RuntimeError) as err:
            raise ConfigError(
                f"metrics[{name!r}] is a {type(value).__name__}: expected one number. {described(err)}"
            ) from err
        if not isinstance(name, str):
            raise ConfigError(f"metrics has the key {name!r}: expected names.")
    return epoch_of(state) if told is None else told


def loader_info(loaders: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return what a commit record says of its loaders: which data, which order, how far."""
    return {
        name: {
            "manifests": state["manifests"],
            "order": state["config"].get("order"),
            "seed": state["config"].get("seed"),
            "config_digest": state["config_digest"],
            "cursor": state["cursor"],
            "order_digest": state["order_digest"],
        }
        for name, state in loaders.items()
    }


def of_save(
    components: Mapping[str, Any],
    loaders: Mapping[str, Mapping[str, Any]],
    metrics: Mapping[str, float] | None,
    **told: Any,
) -> dict[str, Any]:
    """Return what a commit record says beside its files; `told` is added as it is."""
    return {
        "components": components,
        "loaders": loader_info(loaders),
        "metrics": {name: float(value) for name, value in (metrics or {}).items()},
        "versions": versions(),
        **told,
    }


def updates_of(state: Mapping[str, Any]) -> dict[str, int]:
    """Return how many updates each torch optimiser among the components has made."""
    torch = sys.modules.get("torch")
    found: dict[str, Any] = {}
    if torch is None:
        return found
    for name, component in state.items():
        if isinstance(component, torch.optim.Optimizer):
            steps = [int(entry["step"]) for entry in component.state.values() if "step" in entry]
            found[name] = max(steps, default=0)
    return found


def structure_of(state: Mapping[str, Any]) -> dict[str, str]:
    """Return a digest of names, shapes and dtypes of every torch module among the components."""
    torch = sys.modules.get("torch")
    found: dict[str, Any] = {}
    if torch is None:
        return found
    for name, component in state.items():
        if isinstance(component, torch.nn.Module):
            rows = [(key, list(value.shape), str(value.dtype)) for key, value in _tensors(torch, component)]
            found[name] = hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]
    return found


def _tensors(torch: Any, module: Any) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in module.state_dict().items() if isinstance(value, torch.Tensor)]


def agreement(step: int, state: Mapping[str, Any], loaders: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return what must be the same on every rank when it saves."""
    return {
        "step": step,
        "components": sorted(state),
        "updates": updates_of(state),
        "loaders": {
            name: {
                **{field: saved[field] for field in ("manifests", "config_digest", "cursor", "order_digest")},
                "provenance": loader_of(state[name]).consent(),
            }
            for name, saved in loaders.items()
        },
    }
