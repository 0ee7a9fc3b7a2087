"""The checkpointable state of a loader: small, JSON-able, the same on every rank, and picky on the way back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from trajload.checks import did_you_mean
from trajload.errors import ConfigError, ResumeError

__all__ = ["MAX_STATE_BYTES", "STATE_VERSION", "canonical_digest", "check_state", "differing_fields", "make_state"]

STATE_VERSION = 1
MAX_STATE_BYTES = 4096
_LONGEST_VALUE = 1200
"""A configuration value longer than this (JSON characters) stands in the state as its digest."""

_LONGEST_FIELDS = (400, 120, 24)
"""A longer field of a source stands in the state as '#' and the start of its digest: the first limit that makes the
sources of a mixture fit into `_LONGEST_VALUE`, or the last."""

_REQUIRED = ("format_version", "manifests", "config", "config_digest", "cursor", "pending", "quarantine")


def canonical_digest(value: Any) -> str:
    """Return the hex SHA-256 of `value` as canonical JSON (sorted keys, no spaces)."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _short(value: Any) -> Any:
    if len(json.dumps(value)) <= _LONGEST_VALUE:
        return value
    return {"digest": canonical_digest(value)}


def _shortened(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration as it stands in a state: long values as digests, those of a mixture's sources by field."""
    out = {key: _short(value) for key, value in config.items() if key != "sources"}
    if "sources" in config:
        tries = [config["sources"], *(_brief_sources(config["sources"], limit) for limit in _LONGEST_FIELDS)]
        out["sources"] = next((t for t in tries if len(json.dumps(t)) <= _LONGEST_VALUE), tries[-1])
    return out


def _brief_sources(sources: Mapping[str, Mapping[str, Any]], limit: int) -> dict[str, Any]:
    return {
        name: {
            field: value if len(json.dumps(value)) <= limit else _brief_field(value) for field, value in source.items()
        }
        for name, source in sources.items()
    }


def _brief_field(value: Any) -> str:
    return f"#{canonical_digest(value)[:12]}"


def _as_saved(config: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration shortened where `saved` is, so that only what differs differs."""
    out = _shortened(config)
    before = saved.get("sources")
    if "sources" in config and isinstance(before, Mapping):
        out["sources"] = {
            name: {
                field: _brief_field(value) if _is_brief(before.get(name), field) else value
                for field, value in source.items()
            }
            for name, source in config["sources"].items()
        }
    return out


def _is_brief(source: Any, field: str) -> bool:
    value = source.get(field) if isinstance(source, Mapping) else None
    return isinstance(value, str) and value.startswith("#")


def make_state(
    *,
    config: Mapping[str, Any],
    manifests: list[tuple[int, str]],
    train_step: int,
    pending: tuple[int, int],
    quarantine: list[list[Any]],
    topology: Mapping[str, Any],
    cost_table_digest: str | None = None,
) -> dict[str, Any]:
    """Return the state that continues a run at `train_step`.

    Args:
        config: What decides the batches: order version, seed, sizes, window, streams.
        manifests: (from_train_step, manifest digest), rising.
        train_step: Of the next undelivered batch.
        pending: Half-open range of train_steps planned or decoded but not delivered; they are made again.
        quarantine: [[window_id, from_train_step, reason], ...]; of a mixture with the source behind.
        topology: World size and threads; informational, never compared.
        cost_table_digest: Of the load weights, which move rows between ranks and change no batch: not compared either.
    """
    return {
        "format_version": STATE_VERSION,
        "manifests": [list(pair) for pair in manifests],
        "config": _shortened(config),
        "config_digest": canonical_digest(config),
        "cursor": {"train_step": train_step},
        "rng": {},
        "pending": {"train_steps": list(pending), "attempts": {}},
        "quarantine": quarantine,
        "cost_table_digest": cost_table_digest,
        "topology": dict(topology),
    }


def differing_fields(
    saved: Mapping[str, Any],
    current: Mapping[str, Any],
    prefix: str = "",
    named: tuple[str, str] = ("saved", "here"),
) -> list[str]:
    """Return one line per differing leaf: `window.num_steps: saved 16, here 8`."""
    lines, (one, other) = [], named
    for key in [*saved, *(k for k in current if k not in saved)]:
        name = f"{prefix}{key}"
        if key not in current:
            lines.append(f"{name}: {one} {saved[key]!r}, {other} absent")
        elif key not in saved:
            lines.append(f"{name}: {one} absent, {other} {current[key]!r}")
        elif isinstance(saved[key], Mapping) and isinstance(current[key], Mapping):
            lines += differing_fields(saved[key], current[key], f"{name}.", named)
        elif _are_objects(saved[key]) and _are_objects(current[key]) and len(saved[key]) == len(current[key]):
            for i, (before, here) in enumerate(zip(saved[key], current[key], strict=True)):
                lines += differing_fields(before, here, f"{name}[{i}].", named)
        elif saved[key] != current[key]:
            lines.append(f"{name}: {one} {saved[key]!r}, {other} {current[key]!r}")
    return lines


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, Mapping) for item in value)


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
    # A field that only the state has may be allowed to differ, too: the transforms of a run that goes on without.
    saved = state.get("config") if isinstance(state, Mapping) else None
    known = {*config, *(saved if isinstance(saved, Mapping) else ()), "manifests"}
    if isinstance(allow, str):
        raise ConfigError(f"allow={allow!r} is a single name: expected several. Did you mean ({allow!r},)?")
    if not np.iterable(allow):
        raise ConfigError(f"allow={allow!r} is unusable: expected names of fields, () for none.")
    unknown = [name for name in allow if name not in known]
    if unknown:
        raise ConfigError(
            f"allow={sorted(unknown)!r} names no field: expected some of {sorted(known)!r}."
            f"{did_you_mean(unknown[0], known)}"
        )
    if not isinstance(state, Mapping):
        raise ResumeError(f"the state is a {type(state).__name__}: expected the dict that state_dict() returned.")
    version = state.get("format_version")
    if isinstance(version, bool) or version != STATE_VERSION:
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
    _check_types(state)
    lines = []
    if "manifests" not in allow and [list(pair) for pair in state["manifests"]] != [list(pair) for pair in manifests]:
        lines += _differing_manifests(state["manifests"], manifests, list(config.get("sources", ())))
    here = _as_saved(config, state["config"])
    lines += [line for line in differing_fields(state["config"], here) if _top_field(line) not in allow]
    if not lines and not allow and state["config_digest"] != canonical_digest(config):
        lines.append("config_digest: the fields agree but not their digest; the state was edited or damaged")
    if lines:
        raise ResumeError(
            "the state does not fit this loader; the next batches would not be those of the saved run. Differing:\n  - "
            + "\n  - ".join(lines)
            + "\nBuild the loader as it was saved, or start a new run with seek(train_step)."
        )
    step: int = state["cursor"]["train_step"]
    return step


def _check_types(state: Mapping[str, Any]) -> None:
    """Raise ResumeError where a field is not what `make_state` puts there."""
    is_whole = (
        ("config", isinstance(state["config"], Mapping), "an object of fields"),
        ("manifests", _is_rows(state["manifests"], (int, str)), "a list of [from_train_step, digest]"),
        (
            "quarantine",
            _is_rows(state["quarantine"], (int, int, str), (int, int, str, int)),
            "a list of [window_id, from_train_step, reason] or [..., source]",
        ),
    )
    for name, is_right, expected in is_whole:
        if not is_right:
            raise ResumeError(f"{name} is {_brief(state[name])}: expected {expected}. The state is damaged.")
    step = state["cursor"].get("train_step") if isinstance(state["cursor"], Mapping) else None
    if not _is_count(step):
        raise ResumeError(f"cursor.train_step is {_brief(step)}: expected an int of at least 0. The state is damaged.")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_rows(value: Any, *kinds: tuple[type, ...]) -> bool:
    """Return whether `value` is a list of rows, each with the types of one of `kinds`; ints are counts."""
    return isinstance(value, (list, tuple)) and all(
        isinstance(row, (list, tuple)) and any(_is_row(row, types) for types in kinds) for row in value
    )


def _is_row(row: Collection[Any], types: tuple[type, ...]) -> bool:
    return len(row) == len(types) and all(
        _is_count(v) if t is int else isinstance(v, t) for v, t in zip(row, types, strict=True)
    )


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"


def _top_field(line: str) -> str:
    """Return 'transforms' of 'transforms[1].size: saved ...'."""
    return line.split(":")[0].split(".")[0].split("[")[0]


def _differing_manifests(saved: list[Any], here: list[tuple[int, str]], sources: list[str]) -> list[str]:
    """Return a line for each source of a mixture that differs, or one for all."""
    if len(saved) != len(here) or len(sources) != len(here):
        return [f"manifests: saved {_digests(saved)}, here {_digests(here)} (another dataset or version)"]
    return [
        f"manifests: source {name!r}: saved {_digests([a])}, here {_digests([b])} (another dataset or version)"
        for name, a, b in zip(sources, saved, here, strict=True)
        if list(a) != list(b)
    ]


def _digests(manifests: Collection[Any]) -> str:
    return ", ".join(f"{str(digest)[:12]}… from train_step {step}" for step, digest in manifests)
