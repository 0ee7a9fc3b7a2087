"""Measurements of a real loader on a real dataset."""

from trajload.bench.measure import BenchReport, measure

__all__ = ["BenchReport", "measure"]
