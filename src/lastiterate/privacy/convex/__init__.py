"""Bounds for the last iterate of convex training: distances, shifted losses, and windows of steps."""
