"""What is measured: the workloads, their generated data in every format a loader needs, and the truth to check against."""
