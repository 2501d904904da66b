"""Predict, audit and probe what the last iterate of DP-SGD leaks.

The public names are listed in `__init__.pyi`. Modules are loaded on first use: some are slow, and the command line must
handle Ctrl-C before NumPy is loaded.
"""

import lazy_loader

__version__ = "0.2.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
