"""Measurements of a real loader on a real dataset: how fast, what it waits for, what to change.

observe.py    one run, observed: waits, threads, what the machine gave
loads.py      how busy each kind of thread was
collector.py  what the garbage collector stopped
verdict.py    what limits, in one sentence
knobs.py      what to change, and what to expect of it
headspace.py  the same loader with work left out, to test the verdict
measure.py    all of it together: `measure` gives a `BenchReport`
trace.py      a timeline for chrome://tracing and Perfetto
html.py       a report as one file with plots
sweep.py      which setting is the fastest on this machine
"""

from trajload.bench.measure import measure
from trajload.bench.report import BenchReport

__all__ = ["BenchReport", "measure"]
