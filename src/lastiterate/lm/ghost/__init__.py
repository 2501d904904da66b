"""Clipped sums of per-example gradients, without storing the gradients themselves.

For a product with a matrix, norms of per-example gradients and their clipped sum follow from the inputs of the product
and the gradient of its outputs. This takes one forward and one backward pass (Bu et al. 2023).
"""
