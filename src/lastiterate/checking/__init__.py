"""Is a training what its run says? Measured on a handful of models: noise, clipping, batches, optimizer, seeds."""
