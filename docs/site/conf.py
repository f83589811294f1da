"""The documentation site: Sphinx reads the pages where they lie, from the root of the repository.

    make site            writes build/site; open build/site/index.html

The pages are those that a checkout shows (README.md, docs/, notebooks/ ...), with the links that
they have there, so nothing is written twice. What only the site has is the reference in docs/api,
from the docstrings, and the navigation below.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]

project = "bothways"
author = "the authors of bothways"
version = release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
html_title = f"bothways {version}"

# ------------------------------------------------------------------------------------- the pages

root_doc = "README"
include_patterns = [
    "*.md",
    "docs/*.md",
    "docs/api/*.rst",
    "benchmarks/*.md",
    "results/*.md",
    "results/**/*.md",
    "notebooks/*.ipynb",
    "src/bothways/shipped/*/README.md",
]
exclude_patterns = ["build", ".venv"]

NAVIGATION = {
    "Start": [
        "docs/install",
        "docs/overview",
        "docs/ko",
        "CHANGELOG",
    ],
    "Notebooks": [
        "notebooks/labels-in-a-csv",
        "notebooks/your-own-language",
        "notebooks/entities-to-a-served-model",
        "notebooks/bert-from-scratch-in-a-classroom",
        "notebooks/vectors-and-search",
    ],
    "Guides": [
        "docs/python",
        "docs/labels",
        "docs/vocabulary-and-corpus",
        "docs/pretraining",
        "docs/finetuning",
        "docs/tasks",
        "docs/using",
        "docs/faults",
        "docs/export",
        "docs/serve",
        "docs/scale",
        "docs/reproduce",
    ],
    "Reference": [
        "docs/api/index",
        "docs/names",
        "docs/families",
        "docs/differences",
        "src/bothways/shipped/mini-en/README",
    ],
    "How it is built, and measured": [
        "docs/architecture",
        "docs/decisions",
        "CONTRIBUTING",
        "EXPERIMENTS",
        "benchmarks/README",
        "results/README",
    ],
}
"""The groups of the navigation, with their pages."""
LISTED = {"benchmarks/README": "2*", "results/README": "**/[st]*"}
"""Pages that have those of their folder below them, by a pattern."""


def add_navigation(app: Sphinx, docname: str, source: list[str]) -> None:
    """Give the first page the navigation, and pages of a folder the list of the others."""
    blocks = [source[0]]
    if docname.startswith("results/") and not source[0].startswith("#"):
        blocks.insert(0, f"# {docname.split('/')[-2]}: {docname.split('/')[-1]}")  # a bare table
    if docname == root_doc:
        for caption, pages in NAVIGATION.items():
            blocks.append(toctree([f":caption: {caption}"], [f"/{page}" for page in pages]))
    if docname in LISTED:
        blocks.append(toctree([":glob:"], [LISTED[docname]]))
    source[0] = "\n\n".join(blocks)


def toctree(options: list[str], pages: list[str]) -> str:
    """The directive for pages that the navigation has."""
    lines = ["```{toctree}", ":hidden:", *options, "", *pages, "```", ""]
    return "\n".join(lines)


# What the theme and docutils leave out for those who use a keyboard or a screen reader.
ACCESSIBLE = {
    '<p class="caption" role="heading">': '<p class="caption" role="heading" aria-level="2">',
    '<th class="head"><p></p></th>': "<td></td>",
    '<th class="head"></th>': "<td></td>",
    "<th></th>": "<td></td>",
    '<div class="output text_html">': '<div class="output text_html" tabindex="0">',
    '<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="All pages">',
    '<aside class="toc-drawer">': '<aside class="toc-drawer" aria-label="This page">',
    '<aside class="toc-drawer no-toc">': '<aside class="toc-drawer no-toc" aria-label="This page">',
    "<pre>": '<pre tabindex="0">',
    '<div class="table-wrapper docutils container">': (
        '<div class="table-wrapper docutils container" tabindex="0">'
    ),
    '<div class="table-wrapper colwidths-auto docutils container">': (
        '<div class="table-wrapper colwidths-auto docutils container" tabindex="0">'
    ),
}


def make_accessible(app: Sphinx, exception: Exception | None) -> None:
    """Mend the pages that were written."""
    if exception is None:
        for page in Path(app.outdir).rglob("*.html"):
            text = page.read_text(encoding="utf-8")
            for given, wanted in ACCESSIBLE.items():
                text = text.replace(given, wanted)
            page.write_text(text, encoding="utf-8")


def add_start(app: Sphinx, exception: Exception | None) -> None:
    """Let the folder of the site open at its first page."""
    if exception is None:
        start = Path(app.outdir) / "index.html"
        start.write_text(
            '<!doctype html>\n<html lang="en"><title>bothways</title>\n'
            f'<meta http-equiv="refresh" content="0; url={root_doc}.html">\n'
            f'<a href="{root_doc}.html">bothways</a></html>\n'
        )


# ------------------------------------------------------------------------------ how they are read

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
source_suffix = {".rst": "restructuredtext", ".md": "myst-nb", ".ipynb": "myst-nb"}
myst_heading_anchors = 4  # links to headings, as GitHub names them
nb_execution_mode = "off"  # scripts/run_notebooks.py does, and the outputs are committed
copybutton_exclude = ".linenos, .gp, .go"

default_role = "literal"  # single backticks in docstrings
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_use_ivar = True
napoleon_google_docstring, napoleon_numpy_docstring = True, False

# A name that several classes have, such as `tokens`, is no broken link.
suppress_warnings = ["ref.python"]


def skip_foreign(
    app: Sphinx, what: str, name: str, thing: object, skip: bool, options: object
) -> bool | None:
    """Leave out what classes inherit from other packages, which document it."""
    module = getattr(getattr(thing, "fget", thing), "__module__", None) or ""
    return True if module.startswith(("sklearn.", "builtins")) else None


# -------------------------------------------------------------------------------- how they look

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": False}


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_navigation)
    app.connect("autodoc-skip-member", skip_foreign)
    app.connect("build-finished", make_accessible)
    app.connect("build-finished", add_start)
