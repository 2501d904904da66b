"""Checks of training code against its declared run: noise, clipping, batches, optimizer, seeds."""
