"""Analyses that turn a run into a privacy curve, one file each, and calibration of the noise."""
