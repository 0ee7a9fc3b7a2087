"""`tl.verify`: are the bytes on disk those the manifest and the indexes promise?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trajload.arguments import explains_calls
from trajload.checks import check_bool, check_path
from trajload.errors import ConfigError, TrajloadError
from trajload.manifest import MANIFEST_NAME, FileEntry, IndexEntry, Manifest, ShardEntry, read_manifest
from trajload.shards.index import ShardIndex
from trajload.shards.index_check import index_problems
from trajload.shards.layout import SHARD_FOLDER
from trajload.shards.rebuild import file_sha256, rebuild_index
from trajload.shards.report import Problem, VerifyReport
from trajload.shards.scan import scan_episodes
from trajload.shards.verify_shard import ShardVerifier
from trajload.storage import LocalStore
from trajload.storage.atomic import TEMP_SUFFIX
from trajload.storage.lfs import LFS_ADVICE, is_lfs_pointer_file
from trajload.storage.regular import check_regular
from trajload.types import PathLikeStr

__all__ = ["Problem", "VerifyReport", "rebuild_index", "verify"]


@explains_calls
def verify(path: PathLikeStr, *, deep: bool = True, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
    """Compare a dataset of trajload's own format with its manifest and indexes.

    Damage is reported, never raised, and one damaged file does not hide the next.

    Args:
        path: Folder of the dataset.
        deep: Read everything: SHA-256 of every file, checksums of every member, chunk and group of pictures, tar
            headers against the index. Without it: presence and sizes of all files, indexes in full, digest, leftovers.
        progress: Called with (bytes done, bytes in all) as the work goes on.

    Returns:
        The report; `ok` where nothing is damaged.
    """
    root = check_path("path", path)
    check_bool("deep", deep)
    if progress is not None and not callable(progress):
        raise ConfigError(
            f"progress={progress!r} is unusable: expected a function of (bytes done, bytes in all), or None."
        )
    report = VerifyReport(path=str(path), is_deep=deep)
    try:
        manifest = read_manifest(root)
    except TrajloadError as err:
        kind = "lfs-pointer" if is_lfs_pointer_file(root / MANIFEST_NAME) else "manifest"
        report.problems.append(Problem(kind=kind, message=err.message, file=MANIFEST_NAME))
        _leftovers(root, None, report)
        return report
    report.digest = manifest.digest
    report.num_shards = len(manifest.shards)
    total = sum(entry.num_bytes * (2 if deep else 0) + entry.index.num_bytes for entry in manifest.shards)
    done = 0

    def advance(num_bytes: int) -> None:
        nonlocal done
        done = min(total, done + num_bytes)
        if progress is not None:
            progress(done, total)

    store = LocalStore(root)
    keys: dict[str, str] = {}
    try:
        for entry in manifest.shards:
            index = _shard(root, store, manifest, entry, report, deep, advance)
            if index is not None and deep:
                _keys(index, entry, keys, report)
    finally:
        store.close()
    for beside in (manifest.stats, manifest.sketch):
        if beside is not None and _present(root, beside, report):
            _check_sha256(root, beside, report, "stats")
    _leftovers(root, manifest, report)
    if progress is not None:
        progress(total, total)
    return report


def _present(root: Path, entry: FileEntry | IndexEntry | ShardEntry, report: VerifyReport) -> bool:
    """Return whether a file is there with its size; add a problem where not."""
    file = root / entry.name
    try:
        size = check_regular(file, file.stat()).st_size
    except OSError as err:
        advice = "Restore it"
        if isinstance(entry, IndexEntry):
            advice += ", or rebuild it from its shard: trajload.shards.rebuild.rebuild_index(folder)"
        message = f"file cannot be read: {err.strerror}. {advice}."
        report.problems.append(Problem(kind="missing", message=message, file=entry.name))
        return False
    if size == entry.num_bytes:
        return True
    if is_lfs_pointer_file(file):
        report.problems.append(Problem(kind="lfs-pointer", message=f"file {LFS_ADVICE}.", file=entry.name))
        return False
    what = "truncated" if size < entry.num_bytes else "longer than written"
    message = f"file is {what}: got {size} bytes, expected {entry.num_bytes}. Restore it."
    report.problems.append(Problem(kind="size", message=message, file=entry.name))
    return False


def _check_sha256(
    root: Path, entry: FileEntry | IndexEntry | ShardEntry, report: VerifyReport, kind: str = "sha256"
) -> None:
    try:
        actual = file_sha256(root / entry.name)
    except OSError as err:
        message = f"file cannot be read: {err.strerror}. Restore it, or its permissions."
        report.problems.append(Problem(kind="missing", message=message, file=entry.name))
        return
    report.num_bytes += entry.num_bytes
    if actual != entry.sha256:
        message = f"file is changed: got SHA-256 {actual}, expected {entry.sha256}. Restore it."
        report.problems.append(Problem(kind=kind, message=message, file=entry.name))


def _shard(
    root: Path,
    store: LocalStore,
    manifest: Manifest,
    entry: ShardEntry,
    report: VerifyReport,
    deep: bool,
    advance: Callable[[int], None],
) -> ShardIndex | None:
    """Check one shard and its index, which is returned where it can be used."""
    has_shard = _present(root, entry, report)
    if has_shard and deep:
        _check_sha256(root, entry, report)
        advance(entry.num_bytes)
    index = _index(root, manifest, entry, report) if _present(root, entry.index, report) else None
    advance(entry.index.num_bytes)
    if index is not None:
        report.num_episodes += index.num_episodes
        report.num_steps += int(index.num_steps_E.sum())
    # A truncated shard is still read: which episodes are lost is what its owner wants to know.
    if not deep or not (root / entry.name).is_file():
        return index
    if index is not None:
        ShardVerifier(store, manifest, entry, index, report, advance).run()
    elif has_shard:
        _scan(root, manifest, entry, report)
    return index


def _keys(index: ShardIndex, entry: ShardEntry, keys: dict[str, str], report: VerifyReport) -> None:
    """Add a problem for each key that an earlier episode has."""
    try:
        for key in index.episode_keys():
            if key in keys:
                message = f"key is not unique: an episode of {keys[key]!r} has it too."
                report.problems.append(Problem(kind="content", message=message, file=entry.name, episode=key))
            keys[key] = entry.name
    except TrajloadError as err:
        report.problems.append(Problem(kind="index", message=err.message, file=entry.index.name))


def _index(root: Path, manifest: Manifest, entry: ShardEntry, report: VerifyReport) -> ShardIndex | None:
    """Return the index if every column has its checksum, counts are the manifest's, and it agrees with itself."""
    try:
        index = ShardIndex(root / entry.index.name, entry)
        for name in index.column_names:
            index.column(name)
        counts = (index.num_episodes, int(index.num_steps_E.sum()))
    except TrajloadError as err:
        report.problems.append(Problem(kind="index", message=err.message, file=entry.index.name))
        return None
    _check_sha256(root, entry.index, report)
    if counts != (entry.num_episodes, entry.num_steps):
        message = f"index has {counts[0]} episodes and {counts[1]} steps: expected {entry.num_episodes} and {entry.num_steps}."
        report.problems.append(Problem(kind="index", message=message, file=entry.index.name))
        return None
    wrong = index_problems(index, manifest)
    for what in wrong:
        message = f"index contradicts itself: {what}. Rebuild it from its shard."
        report.problems.append(Problem(kind="index", message=message, file=entry.index.name))
    return None if wrong else index


def _scan(root: Path, manifest: Manifest, entry: ShardEntry, report: VerifyReport) -> None:
    """Without an index, see whether the shard is whole enough to make one from."""
    try:
        for _ in scan_episodes(root / entry.name, manifest.streams):
            pass
    except TrajloadError as err:
        report.problems.append(Problem(kind="tar", message=str(err), file=entry.name))


def _leftovers(root: Path, manifest: Manifest | None, report: VerifyReport) -> None:
    """Add what a killed Writer left: temporary files, and finished files that no manifest lists."""
    listed: set[str] = set()
    for entry in manifest.shards if manifest is not None else ():
        listed.update((entry.name, entry.index.name))
    for folder in (root, root / SHARD_FOLDER):
        for file in sorted(folder.iterdir()) if folder.is_dir() else ():
            name = file.relative_to(root).as_posix()
            if file.name.endswith(TEMP_SUFFIX):
                message = (
                    "unfinished file of a Writer that was killed or is still at work; the dataset does not use it."
                )
            elif folder.name == SHARD_FOLDER and name not in listed and file.suffix in (".tar", ".idx"):
                message = (
                    "file is not listed in the manifest: a Writer was killed before it could publish it, or the manifest "
                    "was replaced. Delete it once sure."
                )
            else:
                continue
            report.problems.append(Problem(kind="leftover", message=message, file=name, severity="warning"))
