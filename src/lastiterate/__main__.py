"""``python -m lastiterate``: the command line, where the ``lastiterate`` script is not on the path."""

from lastiterate.cli import main

main()
