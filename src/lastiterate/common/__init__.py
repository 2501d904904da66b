"""Shared helpers: types, validation, errors, formatting, files, progress."""
