"""The checkpointable state of a loader: small, JSON-able, the same on every rank, and picky on the way back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

from trajload.errors import ConfigError, ResumeError

__all__ = ["MAX_STATE_BYTES", "STATE_VERSION", "canonical_digest", "check_state", "differing_fields", "make_state"]

STATE_VERSION = 1
MAX_STATE_BYTES = 4096
_LONGEST_VALUE = 1200
"""A configuration value longer than this (JSON characters) stands in the state as its digest."""

_REQUIRED = ("format_version", "manifests", "config", "config_digest", "cursor", "pending", "quarantine")


def canonical_digest(value: Any) -> str:
    """Return the hex SHA-256 of `value` as canonical JSON (sorted keys, no spaces)."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _short(value: Any) -> Any:
    if len(json.dumps(value)) <= _LONGEST_VALUE:
        return value
    return {"digest": canonical_digest(value)}


def make_state(
    *,
    config: Mapping[str, Any],
    manifests: list[tuple[int, str]],
    train_step: int,
    pending: tuple[int, int],
    quarantine: list[list[Any]],
    topology: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the state that continues a run at `train_step`.

    Args:
        config: What decides the batches: order version, seed, sizes, window, streams.
        manifests: (from_train_step, manifest digest), rising.
        train_step: Of the next undelivered batch.
        pending: Half-open range of train_steps planned or decoded but not delivered; they are made again.
        quarantine: [[window_id, from_train_step, reason], ...].
        topology: World size and threads; informational, never compared.
    """
    return {
        "format_version": STATE_VERSION,
        "manifests": [list(pair) for pair in manifests],
        "config": {key: _short(value) for key, value in config.items()},
        "config_digest": canonical_digest(config),
        "cursor": {"train_step": train_step},
        "rng": {},
        "pending": {"train_steps": list(pending), "attempts": {}},
        "quarantine": quarantine,
        "cost_table_digest": None,
        "topology": dict(topology),
    }


def differing_fields(saved: Mapping[str, Any], current: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return one line per differing leaf: `window.num_steps: saved 16, here 8`."""
    lines = []
    for key in [*saved, *(k for k in current if k not in saved)]:
        name = f"{prefix}{key}"
        if key not in current:
            lines.append(f"{name}: saved {saved[key]!r}, here absent")
        elif key not in saved:
            lines.append(f"{name}: saved absent, here {current[key]!r}")
        elif isinstance(saved[key], Mapping) and isinstance(current[key], Mapping):
            lines += differing_fields(saved[key], current[key], f"{name}.")
        elif saved[key] != current[key]:
            lines.append(f"{name}: saved {saved[key]!r}, here {current[key]!r}")
    return lines


def check_state(
    state: Mapping[str, Any],
    *,
    config: Mapping[str, Any],
    manifests: list[tuple[int, str]],
    allow: Collection[str] = (),
) -> int:
    """Return the saved train_step if `state` fits this loader.

    Args:
        state: What `make_state` gave, perhaps through JSON.
        config: Of this loader.
        manifests: Of this loader.
        allow: Top-level configuration fields that may differ ('streams', ...), or 'manifests'.

    Raises:
        ResumeError: The state is of another version, lacks a field, or differs; every differing field is named.
        ConfigError: `allow` names an unknown field.
    """
    unknown = [name for name in allow if name not in config and name != "manifests"]
    if unknown:
        raise ConfigError(
            f"allow={sorted(unknown)!r} names no field: expected some of {sorted([*config, 'manifests'])!r}."
        )
    if not isinstance(state, Mapping):
        raise ResumeError(f"the state is a {type(state).__name__}: expected the dict that state_dict() returned.")
    version = state.get("format_version")
    if version != STATE_VERSION:
        raise ResumeError(
            f"state of format version {version!r} cannot be loaded: expected version {STATE_VERSION}. "
            + (
                "Upgrade trajload."
                if isinstance(version, int) and version > STATE_VERSION
                else "It may not be a loader's state."
            )
        )
    absent = [name for name in _REQUIRED if name not in state]
    if absent:
        raise ResumeError(f"the state lacks {', '.join(map(repr, absent))}: it is damaged or not a loader's state.")
    lines = []
    if "manifests" not in allow and [list(pair) for pair in state["manifests"]] != [list(pair) for pair in manifests]:
        lines.append(
            f"manifests: saved {_digests(state['manifests'])}, here {_digests(manifests)} (another dataset or version)"
        )
    here = {key: _short(value) for key, value in config.items()}
    lines += [line for line in differing_fields(state["config"], here) if line.split(":")[0].split(".")[0] not in allow]
    if not lines and not allow and state["config_digest"] != canonical_digest(config):
        lines.append("config_digest: the fields agree but not their digest; the state was edited or damaged")
    if lines:
        raise ResumeError(
            "the state does not fit this loader; the next batches would not be those of the saved run. Differing:\n  - "
            + "\n  - ".join(lines)
            + "\nBuild the loader as it was saved, or start a new run with seek(train_step)."
        )
    step = state["cursor"].get("train_step") if isinstance(state["cursor"], Mapping) else None
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ResumeError(f"cursor.train_step is {step!r}: expected an int of at least 0. The state is damaged.")
    return step


def _digests(manifests: Collection[Any]) -> str:
    return ", ".join(f"{str(digest)[:12]}… from train_step {step}" for step, digest in manifests)
