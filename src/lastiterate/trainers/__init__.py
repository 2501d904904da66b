"""Code that both trainers share, the one in JAX and the one for language models."""
