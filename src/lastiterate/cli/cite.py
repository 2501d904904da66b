"""The command ``lastiterate cite``: BibTeX entries of the tool and of the paper."""

from lastiterate.cli.options import Json, unfold
from lastiterate.cli.output import print_json


@unfold
def cite(json: Json = False) -> None:
    """Print BibTeX entries of this tool and of the paper.

    Cite the paper for the heuristic, and the tool for numbers that it computed.

    \b
    Example:
      lastiterate cite
      lastiterate cite >> references.bib
    """
    from lastiterate.citation import bibtex

    entries = bibtex()
    if json:
        print_json(entries)
    else:
        print("\n\n".join(entries.values()))
