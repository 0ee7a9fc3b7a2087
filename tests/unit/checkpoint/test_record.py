"""A record comes back equal, or is refused; no byte of it can change unnoticed."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajload.checkpoint import record
from trajload.checkpoint.digests import digest_bytes, digest_file, new_digest
from trajload.checkpoint.record import decode_record, encode_record
from trajload.errors import CheckpointCorruptError, CheckpointMismatchError, ConfigError, MissingDependencyError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_record_comes_back_equal(value: Any) -> None:
    """Numbers to the last bit, infinities, empty and odd text."""
    body, digest = decode_record(*[encode_record("probe", {"x": value})[0], "probe"])
    assert body == {"x": value, "v": 1, "kind": "probe"}
    assert digest.startswith("sha256:")


def test_nan_comes_back_as_nan() -> None:
    """A metric that failed does not keep a checkpoint from being written."""
    body, _ = decode_record(encode_record("probe", {"loss": math.nan})[0], "probe")
    assert math.isnan(body["loss"])


def test_same_body_gives_the_same_bytes() -> None:
    """Order of keys does not matter."""
    assert encode_record("p", {"a": 1, "b": [2.5]}) == encode_record("p", {"b": (2.5,), "a": 1})


def test_every_flipped_bit_and_every_cut_is_noticed() -> None:
    """All of them, for a small record."""
    data, _ = encode_record("probe", {"step": 12, "text": "é\n"})
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CheckpointCorruptError):
            decode_record(bytes(flipped), "probe")
    for size in range(len(data)):
        with pytest.raises(CheckpointCorruptError):
            decode_record(data[:size], "probe")
    with pytest.raises(CheckpointCorruptError):
        decode_record(data + b"\n", "probe")


@pytest.mark.parametrize(
    "data", [b"", b"\n", b"\n\n", b"{}", b"\x80\x04K\x01.", b"[" * 100_000 + b"\n\n"], ids=range(6)
)
def test_what_is_no_record_is_told_so(data: bytes) -> None:
    """Other files, a pickle, hostile nesting."""
    with pytest.raises(CheckpointCorruptError):
        decode_record(data, "probe")


def test_whole_but_hostile_json_is_refused() -> None:
    """A right digest does not make it a record."""
    for text in (b"[" * 100_000, b"[]", b'{"v":true}', b'{"v":0}', b"1" * 5000, b'{"v":1}'):
        with pytest.raises(CheckpointCorruptError):
            decode_record(text + b"\n" + digest_bytes(text).encode() + b"\n", "probe")


def test_newer_format_is_told_from_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole record of a newer version asks for an upgrade."""
    monkeypatch.setattr(record, "VERSION", 2)
    data, _ = encode_record("probe", {})
    monkeypatch.undo()
    with pytest.raises(CheckpointMismatchError, match="format version 2, and this trajload reads up to 1"):
        decode_record(data, "probe")


def test_record_of_another_kind_is_refused() -> None:
    """A pin is no commit."""
    with pytest.raises(CheckpointCorruptError, match="the record is a 'pin': expected a 'commit'"):
        decode_record(encode_record("pin", {})[0], "commit")


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({1: 2}, "key 1 of info['a']"),
        ([b"x"], r"info['a'][0] is a bytes"),
        ({"b": {1, 2}}, r"info['a']['b'] is a set"),
        ({"~float": 1}, "key '~float'"),
        (10**5000, "cannot be recorded"),
    ],
    ids=["int key", "bytes", "set", "reserved", "huge"],
)
def test_what_cannot_be_recorded_is_named(value: Any, where: str) -> None:
    """The message says which value it is."""
    with pytest.raises(ConfigError) as caught:
        encode_record("info", {"a": value})
    assert where in str(caught.value)


def test_endless_nesting_is_refused() -> None:
    """A dict that holds itself is an error, not a crash."""
    loop: dict[str, Any] = {}
    loop["loop"] = loop
    with pytest.raises(ConfigError, match="nested too deeply"):
        encode_record("info", loop)


def test_oversized_record_is_refused() -> None:
    """Large state belongs into files."""
    with pytest.raises(ConfigError, match="Put large state into files"):
        encode_record("info", {"x": "y" * (record.MAX_RECORD_BYTES + 1)})


def test_digest_is_that_of_the_algorithm_it_names(tmp_path: Any) -> None:
    """Of bytes and of files, in pieces or at once."""
    data = bytes(range(256)) * 40_000
    (tmp_path / "f").write_bytes(data)
    for algorithm in ("sha256", "blake3"):
        digest = new_digest(algorithm)
        for start in range(0, len(data), 1_000_003):
            digest.update(data[start : start + 1_000_003])
        assert digest.text() == digest_bytes(data, algorithm) == digest_file(tmp_path / "f", algorithm)
        assert digest.bytes == len(data)
    assert digest_bytes(b"abc") == "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert digest_bytes(b"", "blake3").startswith("blake3:af1349b9f5f9a1a6")


def test_unknown_algorithm_asks_for_an_upgrade() -> None:
    """Not taken for damage."""
    with pytest.raises(CheckpointMismatchError, match="'md9' is not known"):
        new_digest("md9")


def test_absent_blake3_is_a_missing_dependency(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the cure, and new files take sha256."""
    import sys

    from trajload.checkpoint import digests

    monkeypatch.setitem(sys.modules, "blake3", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'trajload\[checkpoint\]'"):
        new_digest("blake3")
    monkeypatch.setattr(digests.importlib.util, "find_spec", lambda name: None)
    assert new_digest().algorithm == "sha256"
