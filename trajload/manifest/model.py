"""The manifest as values: what it must hold, and the digest over it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from trajload.errors import ConfigError, ManifestError
from trajload.manifest.canonical import canonical_json, sha256_hex
from trajload.spec import StreamSpec
from trajload.storage.local import check_inside

__all__ = ["FORMAT_NAME", "FORMAT_VERSION", "FileEntry", "IndexEntry", "Manifest", "ShardEntry"]

FORMAT_NAME = "trajload"
FORMAT_VERSION = 1


def _field(obj: Mapping[str, Any], name: str, kind: type | tuple[type, ...], where: str) -> Any:
    """Return `obj[name]` if it is of `kind`, else raise ManifestError naming the field and what it holds."""
    if name not in obj:
        raise ManifestError(f"{where} lacks field {name!r}. The manifest is incomplete; restore it from its source.")
    value = obj[name]
    kinds = kind if isinstance(kind, tuple) else (kind,)
    # bool is an int to Python, never to a manifest
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        names = " or ".join("null" if k is type(None) else k.__name__ for k in kinds)
        raise ManifestError(
            f"field {name!r} of {where} is ill-typed: got {value!r} of type {type(value).__name__}, expected {names}."
        )
    return value


def _count(obj: Mapping[str, Any], name: str, where: str) -> int:
    value = _field(obj, name, int, where)
    if value < 0:
        raise ManifestError(f"field {name!r} of {where} is {value}: expected a count of at least 0.")
    return int(value)


def _hex(obj: Mapping[str, Any], name: str, num_digits: int, where: str) -> str:
    value = _field(obj, name, str, where)
    if len(value) != num_digits or set(value) - set("0123456789abcdef"):
        raise ManifestError(f"field {name!r} of {where} is {value!r}: expected {num_digits} lower-case hex digits.")
    return str(value)


def _file_name(obj: Mapping[str, Any], where: str) -> str:
    name = _field(obj, "name", str, where)
    try:
        return check_inside(name)
    except ConfigError as err:
        raise ManifestError(f"field 'name' of {where}: {err.message}") from err


@dataclass(frozen=True, kw_only=True, slots=True)
class FileEntry:
    """One file beside the shards, with what proves it unchanged."""

    name: str
    """Relative to the dataset folder, with '/'."""
    num_bytes: int
    sha256: str

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "num_bytes": self.num_bytes, "sha256": self.sha256}

    @classmethod
    def from_json(cls, obj: Mapping[str, Any], where: str) -> FileEntry:
        return cls(
            name=_file_name(obj, where),
            num_bytes=_count(obj, "num_bytes", where),
            sha256=_hex(obj, "sha256", 64, where),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexEntry:
    """The index file of one shard."""

    name: str
    num_bytes: int
    sha256: str
    header_xxh3_64: str
    """Of the safetensors length and header, in hex; the header in turn holds a checksum of every column."""

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "num_bytes": self.num_bytes,
            "sha256": self.sha256,
            "header_xxh3_64": self.header_xxh3_64,
        }

    @classmethod
    def from_json(cls, obj: Mapping[str, Any], where: str) -> IndexEntry:
        return cls(
            name=_file_name(obj, where),
            num_bytes=_count(obj, "num_bytes", where),
            sha256=_hex(obj, "sha256", 64, where),
            header_xxh3_64=_hex(obj, "header_xxh3_64", 16, where),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardEntry:
    """One shard and its index."""

    name: str
    num_bytes: int
    sha256: str
    num_episodes: int
    num_steps: int
    index: IndexEntry

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "num_bytes": self.num_bytes,
            "sha256": self.sha256,
            "num_episodes": self.num_episodes,
            "num_steps": self.num_steps,
            "index": self.index.to_json(),
        }

    @classmethod
    def from_json(cls, obj: Mapping[str, Any], where: str) -> ShardEntry:
        return cls(
            name=_file_name(obj, where),
            num_bytes=_count(obj, "num_bytes", where),
            sha256=_hex(obj, "sha256", 64, where),
            num_episodes=_count(obj, "num_episodes", where),
            num_steps=_count(obj, "num_steps", where),
            index=IndexEntry.from_json(_field(obj, "index", dict, where), f"the index of {where}"),
        )


def _rate(obj: Mapping[str, Any], where: str) -> Fraction | None:
    """Return the nominal step rate that `step_clock` holds as [numerator, denominator], or None."""
    clock = _field(obj, "step_clock", (dict, type(None)), where)
    if clock is None:
        return None
    pair = _field(clock, "rate_hz", list, "the step clock of the manifest")
    if len(pair) != 2 or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in pair):
        raise ManifestError(
            f"field 'rate_hz' of the step clock is {pair!r}: expected [numerator, denominator], ints of at least 1."
        )
    return Fraction(pair[0], pair[1])


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """The immutable description of one dataset version."""

    name: str
    streams: tuple[StreamSpec, ...]
    step_rate_hz: Fraction | None
    """Nominal rate of the step clock; None where episodes carry explicit times only."""
    shards: tuple[ShardEntry, ...]
    stats: FileEntry | None = None
    sketch: FileEntry | None = None
    """Row sample behind the quantiles of `stats`; only appending needs it."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    stored_digest: str | None = None
    """The digest a manifest file carries; it also covers fields that this version ignores."""

    @property
    def num_episodes(self) -> int:
        return sum(shard.num_episodes for shard in self.shards)

    @property
    def num_steps(self) -> int:
        return sum(shard.num_steps for shard in self.shards)

    @property
    def digest(self) -> str:
        """SHA-256, in hex, of the canonical JSON of everything but the digest itself."""
        return self.stored_digest or sha256_hex(canonical_json(self._body()))

    def _body(self) -> dict[str, Any]:
        rate = self.step_rate_hz
        return {
            "format": FORMAT_NAME,
            "format_version": FORMAT_VERSION,
            "name": self.name,
            "num_episodes": self.num_episodes,
            "num_steps": self.num_steps,
            "streams": [spec.to_json() for spec in self.streams],
            "step_clock": None if rate is None else {"rate_hz": [rate.numerator, rate.denominator]},
            "shards": [shard.to_json() for shard in self.shards],
            "stats": None if self.stats is None else self.stats.to_json(),
            "sketch": None if self.sketch is None else self.sketch.to_json(),
            "provenance": dict(self.provenance),
        }

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object that stands in `manifest.json`, digest included."""
        return {**self._body(), "digest": self.digest}

    @classmethod
    def from_json(cls, obj: Any) -> Manifest:
        """Return the manifest a JSON object describes.

        Raises:
            ManifestError: Unknown format or newer version; a field is missing or ill-typed (named); a name leaves
                the dataset folder; counts or digest differ from the content.
        """
        where = "the manifest"
        if not isinstance(obj, dict) or obj.get("format") != FORMAT_NAME:
            got = obj.get("format") if isinstance(obj, dict) else type(obj).__name__
            raise ManifestError(f"not a trajload manifest: field 'format' is {got!r}, expected {FORMAT_NAME!r}.")
        version = _field(obj, "format_version", int, where)
        if version != FORMAT_VERSION:
            advice = "upgrade: pip install -U trajload" if version > FORMAT_VERSION else "the manifest is damaged"
            raise ManifestError(
                f"the manifest has format version {version}, but this trajload reads up to version {FORMAT_VERSION}; {advice}."
            )
        claimed = _hex(obj, "digest", 64, where)
        streams = tuple(
            StreamSpec.from_json(_object(spec, f"stream {i} of {where}"))
            for i, spec in enumerate(_field(obj, "streams", list, where))
        )
        names = [spec.name for spec in streams]
        if len(set(names)) != len(names):
            raise ManifestError(f"the manifest names a stream twice: {names}.")
        shards = tuple(
            ShardEntry.from_json(_object(shard, f"shard {i} of {where}"), f"shard {i} of {where}")
            for i, shard in enumerate(_field(obj, "shards", list, where))
        )
        extra = {
            key: None
            if (entry := _field(obj, key, (dict, type(None)), where)) is None
            else FileEntry.from_json(entry, f"entry {key!r} of {where}")
            for key in ("stats", "sketch")
        }
        manifest = cls(
            name=_field(obj, "name", str, where),
            streams=streams,
            step_rate_hz=_rate(obj, where),
            shards=shards,
            provenance=_field(obj, "provenance", dict, where),
            stored_digest=claimed,
            **extra,
        )
        for key in ("num_episodes", "num_steps"):
            if _count(obj, key, where) != getattr(manifest, key):
                raise ManifestError(
                    f"field {key!r} of the manifest is {obj[key]}, but its shards add up to {getattr(manifest, key)}."
                )
        body = {key: value for key, value in obj.items() if key != "digest"}
        actual = sha256_hex(canonical_json(body))
        if actual != claimed:
            raise ManifestError(
                f"the manifest's digest does not fit: got {actual} from its content, expected {claimed} from its "
                "field 'digest'. It was edited or damaged; restore it from its source."
            )
        return manifest


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ManifestError(f"{where} is ill-typed: got {type(value).__name__}, expected an object.")
    return value
