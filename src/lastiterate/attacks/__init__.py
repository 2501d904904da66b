"""Attacks of the paper and others, one file each: a crafter makes the canary, a distinguisher scores the models.

The public names are listed in `__init__.pyi`. Attacks are loaded on first use, because some of them need JAX.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
