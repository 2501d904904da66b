"""The privacy loss of steps that are all released: its cumulants, and lines on which to integrate them."""
