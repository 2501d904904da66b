"""The heuristic inside other libraries, and their runs as ours."""
