"""What loading costs, as measured: tables of it, and who uses them. Costs move work between ranks, never windows."""
