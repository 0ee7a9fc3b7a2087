"""Byte ranges from wherever they are kept. Knows keys and bytes, nothing of episodes."""

from trajload.storage.base import ByteStore
from trajload.storage.local import LocalStore

__all__ = ["ByteStore", "LocalStore"]
