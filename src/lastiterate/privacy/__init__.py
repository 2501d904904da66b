"""From a run to its privacy curve: NumPy, SciPy and dp-accounting only."""
