"""Which commits may go. Decides only; nothing is removed here."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from trajload.checkpoint.entries import Commit, Keep

__all__ = ["kept_beside_newest", "victims"]


def victims(commits: Sequence[Commit], keep: Keep, *, good: Sequence[Commit], pinned: Collection[str]) -> list[Commit]:
    """Return the commits that go, oldest first.

    Args:
        commits: All of the store, by ascending seq.
        keep: The user's rule.
        good: The newest that have been verified, newest first; fewer than `keep.last` and nothing goes.
        pinned: Digests of pinned commits.

    Example:
        >>> victims([], Keep(last=1), good=[], pinned=())
        []
    """
    if len(good) < keep.last:
        return []
    oldest_kept = min(commit.seq for commit in good[: keep.last])
    spared = kept_beside_newest(commits, keep) | set(pinned)
    # What is newer than the last good one stays even where it is damaged: it is not ours to judge it lost.
    return [commit for commit in commits if commit.seq < oldest_kept and commit.digest not in spared]


def kept_beside_newest(commits: Sequence[Commit], keep: Keep) -> set[str]:
    """Return digests of the commits kept as one of every N steps, or as one of the best."""
    kept: set[str] = set()
    if keep.every:
        reached = 0
        for commit in commits:
            # The first at or after each multiple; after a rewind the multiples already reached are not kept again.
            if commit.step // keep.every > reached:
                reached = commit.step // keep.every
                kept.add(commit.digest)
    if keep.metric is not None:
        smaller, name = keep.metric
        scored = [(value, commit) for commit in commits if (value := _metric(commit, name)) is not None]
        scored.sort(key=lambda pair: (pair[0] if smaller else -pair[0], -pair[1].seq))
        kept.update(commit.digest for _, commit in scored[: keep.best_count])
    return kept


def _metric(commit: Commit, name: str) -> float | None:
    metrics = commit.info.get("metrics")
    value = metrics.get(name) if isinstance(metrics, dict) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        return None
    return value
