"""The documentation site. `make docs` builds it from docs/, results/ and the docstrings into build/site."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import reference  # noqa: E402  (docs/reference.py)

import codid_lightning  # noqa: E402

project = "codid-lightning"
author = "The codid-lightning developers"
release = version = codid_lightning.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_design", "sphinxcontrib.mermaid"]
exclude_patterns = ["README.md"]
html_theme = "pydata_sphinx_theme"
html_title = "codid-lightning"
html_theme_options = {
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "navbar_align": "left",
    "show_prev_next": False,
}
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
myst_heading_anchors = 4  # pages link to headings, as on GitHub
myst_fence_as_directive = ["mermaid"]
myst_enable_extensions = ["colon_fence"]
nb_execution_mode = "force"  # tutorials run when the site is built
nb_execution_in_temp = True
nb_execution_timeout = 600  # seconds of a cell, on a busy machine
nb_merge_streams = True
nb_output_stderr = "remove"  # what Lightning says about itself
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # tutorials call `codid`
os.environ |= {"COLUMNS": "100", "TERM": "dumb"}  # no progress bars
nb_execution_raise_on_error = True
add_module_names = False
default_role = "code"  # docstrings put code between single backticks
autodoc_typehints = "none"  # signatures show them
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_custom_sections = [("Learned", "params_style")]


def setup(app: Any) -> None:
    """Write the generated pages, and let links to files of the repository work on the site."""
    reference.write(Path(__file__).parent / "generated")
    app.connect("source-read", map_links)


def map_links(app: Any, page: str, source: list[str]) -> None:
    """Replace links to files outside docs/ by links to their copies."""
    source[0] = reference.site_links(page, source[0])
