"""Does the data make sense? `examine` looks at a dataset and says what is wrong, where, and what to do."""

from trajload.doctor.examine import examine
from trajload.doctor.report import DoctorReport, Finding, Severity

__all__ = ["DoctorReport", "Finding", "Severity", "examine"]
