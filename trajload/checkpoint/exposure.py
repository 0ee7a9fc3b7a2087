"""What a checkpoint has been trained on: of each loader the train_steps delivered, and what they held, dataset by dataset.

The order is a pure function of its configuration, so ranges of train_steps say exactly which windows were seen, in a few
numbers. They are carried on from commit to commit: a run that goes on from a commit has seen what that one had, whatever its
own process had delivered before. See docs/decisions/0115-exposure-is-ranges-of-train-steps.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from trajload.arguments import explains_calls
from trajload.errors import CheckpointMismatchError, ConfigError
from trajload.pipeline.seen import union

if TYPE_CHECKING:
    from trajload.checkpoint.entries import Commit
    from trajload.loader import Loader

__all__ = ["Exposure", "check_order", "check_tags", "episodes_seen", "loader_of"]


def loader_of(component: Any) -> Loader:
    """Return the loader behind a component that has the state of one: itself, or that of a DataLoader."""
    loader: Loader = getattr(component, "loader", component)
    return loader


class Exposure:
    """What the training state of one run has seen, by the names of its loaders: lists of segments, one for each version of
    dataset or configuration, {"manifests", "config_digest", "train_steps": [[begin, stop], ...], "sources"}."""

    def __init__(self) -> None:
        self._before: dict[str, list[dict[str, Any]]] = {}

    def now(
        self, components: Mapping[str, Any], states: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, list[dict[str, Any]]]:
        """Return the segments of all loaders, for the commit record."""
        found = {name: segments for name, segments in self._before.items() if name not in states}
        for name, state in states.items():
            loader = loader_of(components[name])
            here = {field: state[field] for field in ("manifests", "config_digest")}
            before, ranges = [], list(loader.seen.ranges)
            for segment in self._before.get(name, ()):
                if all(segment.get(field) == here[field] for field in here):
                    ranges += [(begin, stop) for begin, stop in segment["train_steps"]]
                else:
                    before.append(segment)
            ranges = union(ranges)
            rows = [list(pair) for pair in ranges]
            found[name] = (
                [*before, {**here, "train_steps": rows, "sources": loader.exposure(ranges)}] if rows else before
            )
        return found

    def go_on(self, info: Mapping[str, Any], components: Mapping[str, Any], states: Iterable[str]) -> None:
        """The training state was loaded from a commit with this `info`: it has seen what that one had, and nothing else."""
        saved = info.get("exposure")
        self._before = {name: list(segments) for name, segments in saved.items()} if isinstance(saved, Mapping) else {}
        for name in states:
            loader_of(components[name]).seen.clear()


def check_order(
    info: Mapping[str, Any], components: Mapping[str, Any], states: Mapping[str, Mapping[str, Any]]
) -> None:
    """Raise CheckpointMismatchError where a loader with the saved dataset and configuration gives other windows."""
    saved = info.get("loaders")
    lines = []
    for name, there in saved.items() if isinstance(saved, Mapping) else ():
        here = states.get(name)
        digest = there.get("order_digest")
        if here is None or digest is None or any(here[f] != there.get(f) for f in ("manifests", "config_digest")):
            continue  # what differs is named by the loader itself
        step = there["cursor"]["train_step"]
        found = loader_of(components[name]).order_digest(step)
        if found != digest:
            lines.append(f"{name}: windows around train_step {step}: saved {digest[:12]}…, here {found[:12]}…")
    if lines:
        raise CheckpointMismatchError(
            "the order of windows is not the one that was saved, though dataset and configuration are; nothing was changed:\n  - "
            + "\n  - ".join(lines)
            + "\nThis trajload, or this processor, computes the order otherwise. Go on with the versions in the commit, and report it."
        )


def check_tags(commit: Commit, allowed: Collection[str] | None) -> None:
    """Raise CheckpointMismatchError where a commit has seen data with a consent tag that is not allowed (None: all are)."""
    if allowed is None:
        return
    lines = [
        f"{name}: source {source!r} is tagged {sorted(set(told['consent_tags']) - set(allowed))}, "
        f"train_steps {segment['train_steps']}, manifests {[digest[:12] for _, digest in segment['manifests']]}"
        for name, segments in (commit.info.get("exposure") or {}).items()
        for segment in segments
        for source, told in segment["sources"].items()
        if told["windows"] and set(told["consent_tags"]) - set(allowed)
    ]
    if lines:
        raise CheckpointMismatchError(
            f"commit {commit.seq} (step {commit.step}) has seen data whose consent tags are not among allowed_tags="
            f"{sorted(allowed)}; nothing was changed:\n  - "
            + "\n  - ".join(lines)
            + "\nGo on from a checkpoint that has not (resume(at=...)), train anew without that data, or allow the tag."
        )


@explains_calls
def episodes_seen(commit: Commit, loader: Loader, *, name: str = "loader") -> dict[str, dict[str, int]]:
    """Return {source: {episode key: windows of it that the commit has seen}}.

    Goes through the order again, batch by batch. Padding counts as nothing; a window that was replaced since it could not be
    read (`on_error='substitute'`) counts as seen.

    Args:
        commit: Of a store.
        loader: As it was saved, with the same dataset.
        name: Of the component.

    Raises:
        ConfigError: The commit has no such loader.
        CheckpointMismatchError: It has seen another dataset or configuration than this loader's.
    """
    segments = (commit.info.get("exposure") or {}).get(name)
    if segments is None:
        known = sorted(commit.info.get("exposure") or {})
        raise ConfigError(f"name={name!r}: commit {commit.seq} (step {commit.step}) has the loaders {known}.")
    state = loader.state_dict()
    other = [
        s
        for s in segments
        if s["manifests"] != [list(m) for m in state["manifests"]] or s["config_digest"] != state["config_digest"]
    ]
    if other:
        raise CheckpointMismatchError(
            f"commit {commit.seq} (step {commit.step}) has seen another dataset or configuration in train_steps "
            f"{other[0]['train_steps']}: manifests {other[0]['manifests']}, here {state['manifests']}. Ask with a loader for each."
        )
    return loader.episodes_in([(begin, stop) for s in segments for begin, stop in s["train_steps"]])
