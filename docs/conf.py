"""Configuration of the site: `python -m sphinx -W --keep-going -b html docs docs/_build/html`."""

import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))
sys.path.insert(0, str(HERE.parent / "src"))

project = "lastiterate"
author = copyright = "the lastiterate authors"  # noqa: A001 - Sphinx' name
release = version = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "command_reference",
]
exclude_patterns = ["_build", "_ext"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # csv has no lexer

# Notebooks are executed by the build. A notebook that has not changed is taken from the cache.
nb_execution_mode = "cache"
nb_execution_timeout = 900  # a busy machine; idle, each notebook takes less than a minute
nb_execution_raise_on_error = True
nb_merge_streams = True

autodoc_typehints = "none"  # the signature of a lazily loaded name is in its docstring's arguments
autodoc_member_order = "bysource"

html_theme = "sphinx_book_theme"
html_title = "lastiterate"
html_theme_options = {"show_toc_level": 2, "use_download_button": False, "use_fullscreen_button": False}
html_show_sourcelink = False
html_static_path, html_css_files = ["_static"], ["site.css"]
