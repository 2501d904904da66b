"""Audits of one training run with many canaries: guesses, what a trade-off curve allows of them, and their power."""
