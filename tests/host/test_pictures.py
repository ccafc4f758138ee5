"""The pictures in docs show the committed results."""

from __future__ import annotations

import copy
from xml.etree import ElementTree

import pytest

import make_pictures
from command_line import ROOT

SOURCE = "{http://purl.org/dc/elements/1.1/}source"
DRAWN = [
    picture
    for picture in make_pictures.ALL
    if all(make_pictures.path(name).exists() for name in picture.results)
]


@pytest.mark.parametrize("picture", DRAWN, ids=lambda picture: picture.name)
def test_a_picture_shows_the_results_of_today(picture):
    path = make_pictures.PICTURES / f"{picture.name}.svg"
    sources = [element.text for element in ElementTree.parse(path).iter(SOURCE)]
    expected = ", ".join(map(make_pictures.digest, picture.results))
    assert sources == [expected], "run benchmarks/make_pictures.py"


def test_every_picture_is_made_by_the_script():
    names = {path.stem for path in make_pictures.PICTURES.iterdir()}
    assert names == {picture.name for picture in DRAWN}
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    shown = "".join(page.read_text(encoding="utf-8") for page in pages)
    assert "pictures/sm80_and_fa2.svg" in shown


@pytest.mark.parametrize("picture", DRAWN, ids=lambda picture: picture.name)
def test_a_picture_says_where_and_what(picture):
    pytest.importorskip("matplotlib")
    results = [make_pictures.load(name) for name in picture.results]
    figure = picture.figure(*results)
    title = figure.get_suptitle()
    for word in ("NVIDIA H200", "cupy_flash 0.", "CuPy 14.", "NVRTC 13.", "2026-"):
        assert word in title, title
    axes = figure.axes
    units = ("TFLOP/s", "speed", "MB")
    assert any(unit in axis.get_ylabel() for axis in axes for unit in units)
    assert any(axis.get_xlabel() for axis in axes)


def test_the_bars_have_the_measured_heights():
    pytest.importorskip("matplotlib")
    results = make_pictures.load("time_peers")
    figure = make_pictures.beside_fa2(results)
    drawn = {round(bar.get_height(), 6) for axis in figure.axes for bar in axis.patches}
    measured = {round(rate, 6) for p in results["points"] for rate in p["tflops"].values()}
    assert drawn == measured


def test_no_point_of_the_picture_of_all_peers_lies_outside():
    pytest.importorskip("matplotlib")
    for axis in make_pictures.beside_peers(make_pictures.load("compare_peers")).axes:
        bottom, top = axis.get_ylim()
        assert bottom == 0
        assert all(max(line.get_ydata()) < top for line in axis.lines)


def test_the_picture_of_all_peers_leaves_out_what_could_not_run():
    pytest.importorskip("matplotlib")
    results = make_pictures.load("time_peers")
    results["peers"] = {"fa3": {"tokenspeed-fa3": "3"}, "fa4": {"not_usable": "ImportError"}}
    for point in results["points"]:
        rates = point.pop("tflops")
        point |= {"heads": 16, "kv_heads": 16}
        point["candidates"] = {"auto": {"tflops": rates["ours"]}, "FA3": {"not_possible": "so"}}
    grouped = copy.deepcopy(results["points"][0]) | {"kv_heads": 4}
    results["points"].append(grouped)
    figure = make_pictures.beside_peers(results)
    assert "tokenspeed-fa3 3" in figure.get_suptitle()
    assert "ImportError" not in figure.get_suptitle()
    assert len(figure.axes) == 6
    lines = figure.axes[0].lines
    assert [(line.get_label(), len(line.get_xdata())) for line in lines] == [
        ("cupy_flash", 3),
        ("FA3", 0),
    ]
