"""How the documentation is built: `python -m sphinx -W --keep-going docs docs/_build`, without a network.

Pages are Markdown; the reference is generated from docstrings and from the declarations of the command line.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import generate  # noqa: E402

import favorbench  # noqa: E402, F401  before Sphinx looks for it: from this folder, not from an installed one

project = "favorbench"
copyright = "The favorbench developers"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "favorbench"
html_static_path, html_css_files = ["static"], ["wide.css"]
html_show_sourcelink = False
html_copy_source = False
pygments_style = "tango"
smartquotes = False  # it makes dashes of flags

myst_heading_anchors = 3
highlight_language = "none"
default_role = "literal"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
maximum_signature_line_length = 90
python_use_unqualified_type_names = True

generate.write(HERE / "_generated")


def setup(app):
    app.connect("autodoc-process-docstring", generate.plain_docstring)
    app.connect("source-read", generate.link_results)
