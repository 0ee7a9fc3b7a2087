"""Which row of a stream stands at which step. Integers only; imports no torch."""
