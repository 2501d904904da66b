"""Clipped sums of per-example gradients that are never written out.

The norm of an example's gradient in a matrix follows from the inputs of the matrix product and the gradient of its
outputs. The clipped sum of all examples is one product of the two. So one forward and one backward pass are enough, as
in training without privacy (ghost norms, and the book-keeping of Bu et al., 2023). ``watching.py`` records where a
model uses its parameters, ``parameter_uses.py`` defines the records, and ``norms_and_sums.py`` computes norms and sums.
``lm/example_gradients.py`` compares with autograd to find the parameters for which the result is right.
"""
