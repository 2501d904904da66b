"""Helpers that every room may use: types, validation, errors, formatting, files, progress."""
