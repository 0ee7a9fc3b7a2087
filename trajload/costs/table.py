"""A table of measured decode costs: what a row of each stream takes in each episode, and a frame before it."""

# Shapes: E episodes

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trajload.arguments import explains_calls
from trajload.errors import ConfigError
from trajload.storage.atomic import write_atomic
from trajload.types import Int64Array, PathLikeStr

__all__ = ["CostTable"]

FORMAT_VERSION = 2
_READABLE = (1, 2)
"""Version 1 knew no `lead_ns`."""
_MAX_ROW_NS = 2**40
"""18 minutes for one row: anything beyond is a fault of the measurement, and sums must stay below 2**62."""


@explains_calls
class CostTable:
    """Nanoseconds that reading and decoding one row of a stream takes, for each episode of one dataset. Immutable.

    A window of video costs more than its rows: frames before them, back to a keyframe, are decoded and dropped. Their cost
    stands in `lead_ns`; how many they are is known from the packet table, window by window.

    Args:
        row_ns: Stream → integers >= 0, one for each episode, (E,). Streams that are not named cost nothing.
        dataset_digest: `Dataset.digest` of the data that were measured.
        info: How they were measured (machine, backend, window): JSON-able, kept as it is.
        lead_ns: Stream → integers >= 0, (E,): a frame that is decoded and not delivered. Only of streams in `row_ns`; those
            that are not named have none, and their `row_ns` is of an average window.

    Raises:
        ConfigError: No stream, lengths that differ, or costs that are no integers in [0, 2**40).

    Example:
        >>> CostTable({"cam": [400, 9000]}, dataset_digest="9f3c").window_ns({"cam": 16}).tolist()
        [6400, 144000]
    """

    def __init__(
        self,
        row_ns: Mapping[str, Any],
        *,
        dataset_digest: str,
        info: Mapping[str, Any] | None = None,
        lead_ns: Mapping[str, Any] | None = None,
    ) -> None:
        if not row_ns:
            raise ConfigError("a cost table needs at least one stream: got none.")
        self.row_ns: dict[str, Int64Array] = {name: _checked(name, values) for name, values in row_ns.items()}
        self.lead_ns: dict[str, Int64Array] = {name: _checked(name, values) for name, values in (lead_ns or {}).items()}
        for name in self.lead_ns:
            if name not in self.row_ns:
                raise ConfigError(
                    f"lead_ns names stream {name!r}, which has no row_ns: expected costs of its rows too."
                )
        lengths = {name: len(values) for name, values in (*self.row_ns.items(), *self.lead_ns.items())}
        if len({len(values) for values in (*self.row_ns.values(), *self.lead_ns.values())}) > 1:
            raise ConfigError(f"costs have different lengths: got {lengths}, expected one number for each episode.")
        if not isinstance(dataset_digest, str) or not dataset_digest:
            raise ConfigError(f"dataset_digest={dataset_digest!r} is invalid: expected Dataset.digest.")
        self.dataset_digest = dataset_digest
        self.info = dict(info or {})

    @property
    def num_episodes(self) -> int:
        return len(next(iter(self.row_ns.values())))

    @property
    def digest(self) -> str:
        """Hex digest of the costs and the data they belong to; without `info`."""
        digest = hashlib.sha256(self.dataset_digest.encode())
        for kind, costs in (("", self.row_ns), ("lead", self.lead_ns)):
            for name in sorted(costs):
                digest.update(kind.encode() + b"\0" + name.encode() + b"\0" + costs[name].astype("<i8").tobytes())
        return digest.hexdigest()

    def window_ns(self, num_rows: Mapping[str, int]) -> Int64Array:
        """Return what a window of each episode costs without frames before its rows, int64 (E,).

        Args:
            num_rows: Stream → how many rows a window takes of it.
        """
        total_E = np.zeros(self.num_episodes, dtype=np.int64)
        for name, count in num_rows.items():
            if name in self.row_ns:
                total_E += count * self.row_ns[name]
        return total_E

    def taken(self, episodes: Any, *, dataset_digest: str, info: Mapping[str, Any] | None = None) -> CostTable:
        """Return the table of a dataset that holds some of these episodes, in the order given."""
        rows = {name: values[episodes] for name, values in self.row_ns.items()}
        leads = {name: values[episodes] for name, values in self.lead_ns.items()}
        return CostTable(rows, dataset_digest=dataset_digest, info=self.info if info is None else info, lead_ns=leads)

    def save(self, path: PathLikeStr) -> None:
        """Write the table as JSON, whole or not at all."""
        value = {
            "format_version": FORMAT_VERSION,
            "dataset_digest": self.dataset_digest,
            "unit": "ns per row",
            "row_ns": {name: values.tolist() for name, values in self.row_ns.items()},
            "lead_ns": {name: values.tolist() for name, values in self.lead_ns.items()},
            "info": self.info,
        }
        write_atomic(path, json.dumps(value, separators=(",", ":")).encode() + b"\n")

    @classmethod
    def load(cls, path: PathLikeStr) -> CostTable:
        """Return the table that `save` wrote.

        Raises:
            ConfigError: The file is absent, or no cost table of a version that is known.
        """
        try:
            value = json.loads(Path(path).read_bytes())
        except FileNotFoundError:
            raise ConfigError(f"file {str(path)!r} does not exist: expected a cost table (costs.json).") from None
        except (OSError, ValueError) as err:
            raise ConfigError(f"file {str(path)!r} is no cost table: {err}.") from err
        if not isinstance(value, dict) or value.get("format_version") not in _READABLE:
            got = value.get("format_version") if isinstance(value, dict) else type(value).__name__
            raise ConfigError(
                f"file {str(path)!r} is no cost table of version 1 or {FORMAT_VERSION}: got {got!r}. Measure the costs again."
            )
        row_ns, lead_ns = value.get("row_ns"), value.get("lead_ns", {})
        if not isinstance(row_ns, dict) or not isinstance(lead_ns, dict):
            what = "row_ns" if not isinstance(row_ns, dict) else "lead_ns"
            raise ConfigError(f"file {str(path)!r} lacks {what!r}: expected stream → costs of each episode.")
        return cls(row_ns, dataset_digest=value.get("dataset_digest", ""), info=value.get("info"), lead_ns=lead_ns)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CostTable) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"CostTable({self.num_episodes} episodes, streams {', '.join(self.row_ns)}, {self.digest[:12]}…)"


def _checked(name: str, values: Any) -> Int64Array:
    array_E = np.asarray(values)
    if array_E.ndim != 1 or not len(array_E) or array_E.dtype.kind not in "iu":
        raise ConfigError(
            f"costs of stream {name!r} are unusable: got shape {array_E.shape} of {array_E.dtype}, expected one integer for "
            "each episode (nanoseconds a row)."
        )
    if int(array_E.min()) < 0 or int(array_E.max()) >= _MAX_ROW_NS:
        bad = int(array_E.min()) if int(array_E.min()) < 0 else int(array_E.max())
        raise ConfigError(f"costs of stream {name!r} hold {bad} ns: expected integers in [0, 2**40).")
    out_E = array_E.astype(np.int64)
    out_E.setflags(write=False)
    return out_E
