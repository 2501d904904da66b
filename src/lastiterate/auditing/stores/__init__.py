"""Where scores are kept: one SQLite file for an audit, safe whatever happens to the process."""
