"""Stores of audit scores: one SQLite file per audit, which survives a crash of the process."""
