"""The manifest: digest, fields, versions, and what is refused."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajload.errors import ManifestError
from trajload.manifest import (
    FileEntry,
    IndexEntry,
    Manifest,
    ShardEntry,
    canonical_json,
    read_manifest,
    sha256_hex,
    write_manifest,
)
from trajload.spec import StreamSpec
from trajload.types import Modality

SHA = "ab" * 32


def make_manifest() -> Manifest:
    index = IndexEntry(name="shards/000000.idx", num_bytes=64, sha256=SHA, header_xxh3_64="0123456789abcdef")
    shard = ShardEntry(name="shards/000000.tar", num_bytes=10240, sha256=SHA, num_episodes=2, num_steps=9, index=index)
    return Manifest(
        name="pusher",
        streams=(StreamSpec(name="action", modality=Modality.ACTION, encoding="npy", shape=(2,), dtype="float32"),),
        step_rate_hz=Fraction(30000, 1001),
        shards=(shard,),
        stats=FileEntry(name="stats.json", num_bytes=10, sha256=SHA),
        provenance={"source": "made up", "licence": "CC0-1.0"},
    )


def sealed(obj: dict[str, Any]) -> dict[str, Any]:
    """Return `obj` with the digest that fits its content."""
    body = {key: value for key, value in obj.items() if key != "digest"}
    return {**body, "digest": sha256_hex(canonical_json(body))}


def put(folder: Path, obj: Any) -> Path:
    (folder / "manifest.json").write_text(json.dumps(obj))
    return folder


def test_manifest_comes_back_equal(tmp_path: Path) -> None:
    """Writing and reading keep every field and the digest."""
    manifest = make_manifest()
    write_manifest(tmp_path, manifest)
    back = read_manifest(tmp_path)
    assert back.digest == manifest.digest == json.loads((tmp_path / "manifest.json").read_text())["digest"]
    assert back.to_json() == manifest.to_json()
    assert back.step_rate_hz == Fraction(30000, 1001) and back.num_episodes == 2 and back.num_steps == 9


def test_digest_is_sha256_of_canonical_json_without_it() -> None:
    """The rule of docs/format.md, spelled out by hand for a reader in another language."""
    obj = make_manifest().to_json()
    digest = obj.pop("digest")
    text = json.dumps(obj, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert digest == sha256_hex(text.encode("utf-8"))


def test_layout_of_the_file_does_not_change_the_digest(tmp_path: Path) -> None:
    """Another order of keys and other spaces are the same manifest."""
    obj = make_manifest().to_json()
    put(tmp_path, dict(reversed(list(obj.items()))))
    assert read_manifest(tmp_path).digest == obj["digest"]


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(codec="utf-8")),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
        max_leaves=12,
    )
)
def test_canonical_json_is_json_and_stable(value: Any) -> None:
    """Canonical JSON reads back equal, and canonical JSON of that is the same bytes."""
    data = canonical_json(value)
    assert json.loads(data) == value
    assert canonical_json(json.loads(data)) == data


def test_canonical_json_takes_numpy_values_and_refuses_nan() -> None:
    """NumPy scalars and arrays in metadata are plain numbers; what JSON cannot say is an error."""
    assert canonical_json({"b": np.float32(0.5), "a": np.arange(2)}) == b'{"a":[0,1],"b":0.5}'
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json([float("nan")])
    with pytest.raises(TypeError, match="set is not a JSON value"):
        canonical_json({"x": {1}})


@pytest.mark.parametrize("field", ["name", "streams", "step_clock", "shards", "provenance", "num_steps", "stats"])
def test_a_missing_field_is_named(tmp_path: Path, field: str) -> None:
    """Which field is absent stands in the message."""
    obj = make_manifest().to_json()
    del obj[field]
    with pytest.raises(ManifestError, match=f"the manifest lacks field '{field}'"):
        read_manifest(put(tmp_path, sealed(obj)))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("name",), 3, r"field 'name' of the manifest is ill-typed: got 3 of type int, expected str"),
        (("shards",), {}, r"field 'shards' of the manifest is ill-typed: got \{\} of type dict, expected list"),
        (("shards", 0), 7, r"shard 0 of the manifest is ill-typed: got int"),
        (("shards", 0, "num_bytes"), "x", r"field 'num_bytes' of shard 0 of the manifest is ill-typed: got 'x'"),
        (("shards", 0, "num_bytes"), True, r"field 'num_bytes' of shard 0 of the manifest is ill-typed: got True"),
        (("shards", 0, "num_bytes"), -1, r"field 'num_bytes' of shard 0 of the manifest is -1"),
        (("shards", 0, "sha256"), "AB", r"field 'sha256' of shard 0 of the manifest is 'AB': expected 64"),
        (("shards", 0, "name"), "../x.tar", r"shard 0 of the manifest: path '../x.tar' leaves the dataset folder"),
        (("shards", 0, "index", "name"), "/x.idx", r"index of shard 0 of the manifest: path '/x.idx' leaves"),
        (("stats", "name"), "a/../../b", r"entry 'stats' of the manifest: path 'a/../../b' leaves"),
        (("step_clock",), {"rate_hz": [30, 0]}, r"'rate_hz' of the step clock is \[30, 0\]"),
        (("streams", 0, "encoding"), "exe", r"stream 'action' of the manifest is unusable: .*'exe' is unknown"),
        (("streams", 0), [], r"stream 0 of the manifest is ill-typed: got list"),
        (("num_steps",), 10, r"field 'num_steps' of the manifest is 10, but its shards add up to 9"),
        (("format",), "zarr", r"field 'format' is 'zarr', expected 'trajload'"),
    ],
)
def test_an_unusable_field_is_named(tmp_path: Path, path: tuple[Any, ...], value: Any, message: str) -> None:
    """What was got, what was expected, and where."""
    obj = make_manifest().to_json()
    inner = obj
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    with pytest.raises(ManifestError, match=message):
        read_manifest(put(tmp_path, sealed(obj)))


def test_a_newer_version_is_told_from_damage(tmp_path: Path) -> None:
    """Both versions stand in the message, and that upgrading helps."""
    obj = {**make_manifest().to_json(), "format_version": 2}
    with pytest.raises(ManifestError, match=r"format version 2, but this trajload reads up to version 1; upgrade"):
        read_manifest(put(tmp_path, obj))


def test_an_edited_manifest_is_refused(tmp_path: Path) -> None:
    """A changed field without a new digest names both digests."""
    obj = make_manifest().to_json()
    old = obj["digest"]
    obj["provenance"] = {"licence": "mine"}
    new = sealed(obj)["digest"]
    with pytest.raises(ManifestError, match=f"digest does not fit: got {new} from its content, expected {old}"):
        read_manifest(put(tmp_path, obj))


def test_unknown_fields_are_kept_in_the_digest(tmp_path: Path) -> None:
    """A field that a later 1.x adds is ignored, and still proven unchanged."""
    obj = sealed({**make_manifest().to_json(), "colour": "green"})
    assert read_manifest(put(tmp_path, obj)).digest == obj["digest"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "is not JSON"),
        (b"[]", "field 'format' is 'list'"),
        (b'{"format": NaN}', "NaN is no JSON number"),
        (b"\xff\xfe\x00", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "is a Git LFS pointer.*git lfs pull"),
    ],
)
def test_a_file_that_is_no_manifest_is_told(tmp_path: Path, data: bytes, message: str) -> None:
    """Damaged text, other JSON and pointers each get their own message."""
    (tmp_path / "manifest.json").write_bytes(data)
    with pytest.raises(ManifestError, match=message):
        read_manifest(tmp_path)


def test_an_absent_manifest_is_told(tmp_path: Path) -> None:
    """A folder without it is a dataset that was never finished."""
    with pytest.raises(ManifestError, match=r"manifest.json' cannot be read: No such file.*never finished"):
        read_manifest(tmp_path)


def test_a_stream_named_twice_is_refused(tmp_path: Path) -> None:
    """Names are keys of a batch."""
    obj = make_manifest().to_json()
    obj["streams"] = obj["streams"] * 2
    with pytest.raises(ManifestError, match="names a stream twice"):
        read_manifest(put(tmp_path, sealed(obj)))
