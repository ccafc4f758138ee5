"""README.md, CONTRIBUTING.md and docs, read as files: links, and tables that repeat the code's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import speed_tables
from cupy_flash.commands.info import CUPYS
from cupy_flash.env import OURS
from readme_table import load

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS.glob("*.md")]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """Return the names that GitHub and the site give to a page's headings."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {text.replace(" ", "-") for text in words}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    for target in LINK.findall(prose(page)):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        found = (page.parent / file).resolve() if file else page
        assert found.is_file(), target
        assert not anchor or anchor in anchors(found), target


def test_readme_leads_to_every_page():
    linked = {(ROOT / target).resolve() for target in LINK.findall(prose(ROOT / "README.md"))}
    # These are the site's own, and show a file of the root.
    site = {DOCS / f"{name}.md" for name in ("index", "contributing", "changelog")}
    pages = {*DOCS.glob("*.md"), *DOCS.glob("*.rst"), ROOT / "CONTRIBUTING.md"}
    assert pages - site <= linked


def test_the_page_of_variables_is_the_table_of_the_code():
    page = (DOCS / "environment.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \|$", page, re.MULTILINE)
    wanted = [(variable.name, variable.default, variable.meaning) for variable in (*OURS, *CUPYS)]
    assert rows == wanted


def test_the_pages_show_every_table():
    names = ("speed.md", "traffic.md", "numerics.md")
    pages = "".join((DOCS / name).read_text(encoding="utf-8") for name in names)
    shown = re.findall(r"^\{\{ (\w+) \}\}$", pages, re.MULTILINE)
    assert sorted(shown) == sorted(speed_tables.TABLES)


def test_no_lost_point_is_left_out():
    slower = 0
    for point in load("time_attention")["points"]:
        ours, unfused = (point["candidates"][name]["tflops"] for name in ("auto", "unfused"))
        slower += ours < unfused
    for point in load("time_peers")["points"]:
        slower += point["tflops"]["ours"] < max(point["tflops"].values())
    rows = speed_tables.losses().splitlines()[2:]
    assert len(rows) == len(set(rows)) == slower
    ratios = [float(row.split("|")[-2]) for row in rows]
    assert ratios == sorted(ratios)
    assert ratios[-1] <= 1


def test_the_inventories_hold_names_roles_and_places():
    for path in (DOCS / "inventories").glob("*.txt"):
        first, *lines = path.read_text(encoding="utf-8").splitlines()
        assert re.fullmatch(r"# .*; relative to https://\S+/", first), path.name
        names = [line.split()[0] for line in lines]
        assert len(names) == len(set(names))
        for line in lines:
            assert re.fullmatch(r"\S+ +(py|std):\w+ +(?!http)\S+\.html#\S+", line), line
