"""Clipped sums of per-example gradients that are never written out.

The norm of an example's gradient in a matrix follows from what the matrix was multiplied with and from the gradient of
what came out; the clipped sum of all examples is one product of the two. So one pass forwards and one backwards are
enough, as in training without privacy (ghost norms, and the book-keeping of Bu et al., 2023). The way is:
``watching.py`` (sees where a model uses its parameters) to ``uses.py`` (what is kept of each use) to ``norms.py`` and
``sums.py``; ``choosing.py`` finds out, by comparing with autograd, for which parameters of a model all that is right.
"""
