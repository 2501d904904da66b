"""Integrations: the heuristic as an accountant of other libraries, and conversion of their runs to ``DPSGD``."""
