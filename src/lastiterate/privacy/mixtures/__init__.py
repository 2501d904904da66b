"""The pair S + N against N: the law of S, kernels that evaluate the mixture, and the root-finder."""
