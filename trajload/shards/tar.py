"""Tar headers with the same bytes for the same members, on every machine and at every time."""

from __future__ import annotations

__all__ = ["BLOCK_BYTES", "END_OF_ARCHIVE", "header_bytes", "padding", "tar_header"]

BLOCK_BYTES = 512
END_OF_ARCHIVE = bytes(2 * BLOCK_BYTES)

_MAX_USTAR_SIZE = 8**11
_MAX_USTAR_NAME_BYTES = 100
_TAIL = b"ustar\x0000" + bytes(64) + b"0000000\x00" * 2 + bytes(167)


def padding(size: int) -> int:
    """Return how many zero bytes follow a member of `size` bytes."""
    return -size % BLOCK_BYTES


def header_bytes(name: str, size: int) -> int:
    """Return how long the header of a member is, cheaply in the common case."""
    if name.isascii() and len(name) <= _MAX_USTAR_NAME_BYTES and size < _MAX_USTAR_SIZE:
        return BLOCK_BYTES
    return len(tar_header(name, size))


def _block(name: bytes, size: int, kind: bytes) -> bytes:
    """Return one ustar block: mode 0644, owner 0, time 0."""
    head = name.ljust(100, b"\0") + b"0000644\x000000000\x000000000\x00%011o\x0000000000000\x00" % size
    tail = kind + bytes(100) + _TAIL
    checksum = sum(head) + sum(tail) + 8 * 32  # the checksum field itself counts as spaces
    return head + b"%06o\x00 " % checksum + tail


def _pax_record(key: bytes, value: bytes) -> bytes:
    """Return `length key=value\\n`, where length counts its own digits."""
    size = len(key) + len(value) + 3
    total = size + len(str(size))
    total = size + len(str(total))
    return b"%d %s=%s\n" % (total, key, value)


def tar_header(name: str, size: int) -> bytes:
    """Return the header of a member: one ustar block, or a pax extension before it where ustar cannot say it."""
    raw = name.encode("utf-8")
    records = b""
    if len(raw) > _MAX_USTAR_NAME_BYTES or not name.isascii():
        records += _pax_record(b"path", raw)
        raw = name.encode("ascii", "replace")[:_MAX_USTAR_NAME_BYTES]
    if size >= _MAX_USTAR_SIZE:
        records += _pax_record(b"size", b"%d" % size)
    if not records:
        return _block(raw, size, b"0")
    extension = _block(b"PaxHeaders/" + raw[:89], len(records), b"x") + records + bytes(padding(len(records)))
    return extension + _block(raw, 0 if size >= _MAX_USTAR_SIZE else size, b"0")
