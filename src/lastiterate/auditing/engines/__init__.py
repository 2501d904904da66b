"""Engines that compute trials: on this machine, or as tasks of a Ray cluster."""
