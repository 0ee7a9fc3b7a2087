"""The loaders that are compared: `table.py` lists them, each has a small module with the same interface (`request.py`)."""
