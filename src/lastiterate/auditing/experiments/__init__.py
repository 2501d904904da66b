"""Experiments, which train and score the models of an audit, and their common protocol."""
