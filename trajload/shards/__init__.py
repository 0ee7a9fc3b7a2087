"""Shards and their indexes: layout, writing, reading, verifying."""
