"""Where trials are computed: on this machine, or as tasks of a Ray cluster."""
