"""Batches: their memory, masks and identity. The only layer below the pipeline that imports torch."""
