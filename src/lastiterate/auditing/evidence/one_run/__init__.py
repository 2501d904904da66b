"""Audits of one training run with many canaries: guesses, their limits under a trade-off curve, and their power."""
