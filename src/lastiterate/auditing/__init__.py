"""From a plan to trained models, to scores, to an empirical epsilon with a stated confidence."""
