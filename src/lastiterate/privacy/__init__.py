"""Privacy curves of runs. This package needs only NumPy, SciPy and dp-accounting."""
