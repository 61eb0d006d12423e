"""Sphinx configuration. `nox -s docs` builds the pages; warnings are errors."""

import actcore

project = "actcore"
author = "the actcore authors"
copyright = f"2026, {author}"
release = actcore.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"actcore {release}"

myst_enable_extensions = ["dollarmath"]  # formulas as GitHub shows them, too
myst_heading_anchors = 3  # so that pages can link to each other's sections as they do on GitHub
autodoc_member_order = "bysource"
autodoc_typehints = "description"
