"""Which windows, in which order, for which rank. Integers only; imports no torch."""
