"""What `verify` found: problems with their places, and counts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Problem", "VerifyReport"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One thing that is not as the manifest or the index says."""

    kind: str
    """'manifest', 'lfs-pointer', 'missing', 'size', 'sha256', 'index', 'tar', 'checksum', 'content', 'stats' or
    'leftover'."""
    message: str
    file: str | None = None
    episode: str | None = None
    """Key of the episode."""
    stream: str | None = None
    severity: str = "error"
    """'error': data are damaged. 'warning': something lies beside the dataset, which itself is whole."""

    def __str__(self) -> str:
        where = [f"{k}={v}" for k, v in (("file", self.file), ("episode", self.episode), ("stream", self.stream)) if v]
        return f"{self.severity}: {self.message}" + (f" [{' '.join(where)}]" if where else "")


@dataclass(kw_only=True, slots=True)
class VerifyReport:
    """Outcome of `verify`."""

    path: str
    is_deep: bool
    digest: str | None = None
    num_shards: int = 0
    num_episodes: int = 0
    num_steps: int = 0
    num_members: int = 0
    """Members whose bytes were compared with their checksum."""
    num_gops: int = 0
    num_bytes: int = 0
    """Of shards and indexes that were read."""
    problems: list[Problem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True where nothing is damaged; warnings do not count."""
        return not any(problem.severity == "error" for problem in self.problems)

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return {"ok": self.ok, **asdict(self)}
