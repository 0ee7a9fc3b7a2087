"""What exists: the manifest of one dataset version."""

from trajload.manifest.canonical import canonical_json, sha256_hex
from trajload.manifest.files import MANIFEST_NAME, read_manifest, write_manifest
from trajload.manifest.model import FORMAT_VERSION, FileEntry, IndexEntry, Manifest, ShardEntry

__all__ = [
    "FORMAT_VERSION",
    "MANIFEST_NAME",
    "FileEntry",
    "IndexEntry",
    "Manifest",
    "ShardEntry",
    "canonical_json",
    "read_manifest",
    "sha256_hex",
    "write_manifest",
]
