"""The documentation site. It needs neither a GPU, nor CuPy, nor a network.

python -m pip install -e '.[docs]' && sphinx-build -W --keep-going docs docs/_build/html
"""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

import cupy_flash

DOCS = Path(__file__).parent
ROOT = DOCS.parent
BUILD = DOCS / "_build"
sys.path[:0] = [str(DOCS), str(ROOT / "benchmarks")]

import comparison_tables  # noqa: E402

import speed_tables  # noqa: E402  (of benchmarks)

project = "cupy_flash"
author = "The cupy_flash authors"
copyright = author
version = release = cupy_flash.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build", "inventories"]
# Every reference must lead somewhere.
nitpicky = True

html_theme = "furo"
html_title = f"cupy_flash {version}"
html_copy_source = False
highlight_language = "none"

myst_enable_extensions = ["substitution"]
myst_heading_anchors = 3
# The tables of speeds: the committed results, so that no figure is written twice.
myst_substitutions = speed_tables.texts() | comparison_tables.texts()

# Single backticks in docstrings: a link where they name something that can be imported.
default_role = "autolink"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
numpydoc_show_class_members = False
numpydoc_xref_param_type = True
# Of a type such as "array, (..., Hq, m, d)" the words below are links, and those of numpydoc's own.
numpydoc_xref_ignore = "all"
numpydoc_xref_aliases = {
    name.rpartition(".")[2]: name
    for name in (
        "cupy_flash.Explanation",
        "cupy_flash.problem.Problem",
        "cupy_flash.reference.Reference",
        "cupy_flash.roofline.Bound",
        "cupy_flash.roofline.Ceiling",
        "cupy_flash.roofline.Cost",
        "cupy_flash.roofline.Figure",
        "cupy_flash.roofline.Gpu",
        "cupy_flash.variant.Variant",
        "numpy.dtype",
        "numpy.ndarray",
    )
}
# CuPy's or NumPy's; numpydoc knows NumPy's only.
numpydoc_xref_aliases["array"] = ":ref:`array <array>`"


def inventory(name: str) -> tuple[str, str]:
    """Pack a list of another project's names into the form that intersphinx reads.

    The names are few, and committed, so that the site is built without a network, and the same
    everywhere.

    Returns
    -------
    url, file : str
        Where that project's site is, and the packed inventory.
    """
    text = (DOCS / "inventories" / f"{name}.txt").read_text(encoding="utf-8")
    first, *lines = text.splitlines()
    names = (line.split() for line in lines)
    entries = "".join(f"{target} {role} 1 {place} -\n" for target, role, place in names)
    header = f"# Sphinx inventory version 2\n# Project: {name}\n# Version: \n"
    header += "# The remainder of this file is compressed using zlib.\n"
    BUILD.mkdir(exist_ok=True)
    path = BUILD / f"{name}.inv"
    path.write_bytes(header.encode() + zlib.compress(entries.encode()))
    return first.split()[-1], str(path)


intersphinx_mapping = {name: inventory(name) for name in ("cupy", "numpy", "python")}

# Pages whose text is a file in the root of the repository: links to the file lead to the page.
ROOT_FILES = {"README": "index", "CONTRIBUTING": "contributing", "CHANGELOG": "changelog"}


def link_root_files(_: Sphinx, tree: nodes.document) -> None:
    """Turn links to those files into links to their pages."""
    for link in tree.findall(addnodes.pending_xref):
        file = Path(link["reftarget"].removesuffix(".md"))
        if link["reftype"] != "myst" or file not in (Path(file.name), ROOT / file.name):
            continue
        if page := ROOT_FILES.get(file.name):
            link.attributes |= {"refdomain": "doc", "reftarget": page}
            link.attributes.setdefault("reftargetid", None)


def setup(app: Sphinx) -> None:
    """Extend Sphinx; it calls this by its name."""
    app.connect("doctree-read", link_root_files)
