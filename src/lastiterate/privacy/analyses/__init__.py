"""From a run to a privacy curve, one file an analysis; and what is asked of them: noise, grids."""
