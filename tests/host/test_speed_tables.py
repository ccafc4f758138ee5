"""Tables of the docs and of README.md from made-up results."""

from __future__ import annotations

import pytest

import gradient_tables
import readme_table
import speed_tables


def option(text, ratio=None, **ours):
    found = {"text": text, "candidates": {"sm80": ours}}
    return found if ratio is None else {**found, "ratio": ratio, "beside": "peer"}


def point(d, n, dtype="float16", **options):
    plain = {word: option("none", cost=1.0) for word in ("full", "causal")}
    return {"dtype": dtype, "d": d, "n": n, "options": {**plain, **options}}


@pytest.fixture
def results(monkeypatch):
    left = option("window (1024, 0)", 1.5, cost=0.2, of_causal=0.9)
    made_up = {
        "kernel": "sm80",
        "points": [
            point(64, 4096, bias=option("bias", 2.0, cost=1.25), left=left),
            point(64, 8192, bias=option("bias", cost=1.5), heads=option("of heads", cost=1.75)),
            point(64, 8192, "bfloat16", bias=option("bias", cost=9.0)),
        ],
        "growth": {
            "points": [
                {"n": n, "window-left": {"seconds": 1e-8 * n}, "causal": {"seconds": 1e-11 * n**2}}
                for n in (4096, 131_072)
            ],
            "exponents": {"window-left": 1.004, "causal": 1.98},
        },
    }
    monkeypatch.setattr(speed_tables, "load", lambda name: {"time_options": made_up}[name])


def rows(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]


def test_costs_of_options(results):
    header, _, *found = rows(speed_tables.options())
    assert header[1:] == ["d = 64, n = 4,096", "d = 64, n = 8,192"]
    assert found == [["bias", "1.25 / 2.00", "1.50"], ["of heads", "", "1.75"]]


def test_speeds_of_windows_and_their_growth(results):
    speeds, growth = speed_tables.windows().split("\n\n")
    assert rows(speeds)[2:] == [["window (1024, 0)", "0.90 / 1.50", ""]]
    assert rows(growth)[2:] == [
        ["4,096", "0.041", "10.00", "0.168"],
        ["131,072", "1.311", "10.00", "171.799"],
        ["grows as", "n^1.00", "", "n^1.98"],
    ]


def gradients(dtype, n, ours, other=None, d=64, causal=False, **more):
    baseline = "torch FA2" if dtype.endswith("float16") else "unfused"
    candidates = {"auto": {"tflops": ours}}
    if other is not None:
        candidates[baseline] = {"tflops": other, **more}
    point = {"dtype": dtype, "d": d, "causal": causal, "n": n}
    return {**point, "parts": {"backward": {"candidates": candidates}}}


@pytest.fixture
def timed(monkeypatch):
    points = [
        gradients("bfloat16", 512, 100.0, 200.0),
        gradients("bfloat16", 4096, 255.4, 300.0),
        gradients("float32", 4096, 22.0, 11.0, causal=True),
        gradients("float64", 4096, 10.0, 20.0, d=128, wrong=True),
    ]
    for module in (readme_table, gradient_tables):
        monkeypatch.setattr(
            module, "load", lambda name: {"time_backward": {"points": points}}[name]
        )
    monkeypatch.setattr(readme_table, "measured", lambda *names: True)


def test_speeds_of_gradients_stand_beside_those_of_the_baseline(timed):
    header, _, *found = rows(gradient_tables.speeds())
    assert header[2:] == ["n = 512", "n = 4,096"]
    assert found == [
        ["bfloat16, d = 64", "FlashAttention-2", "100 (0.50)", "255 (0.85)"],
        ["float32, d = 64, causal", "unfused CuPy", "", "22 (2.00)"],
        # A wrong result is no baseline.
        ["float64, d = 128", "unfused CuPy", "", "10"],
    ]


def test_the_table_of_readme_has_one_length(timed):
    header, _, *found = rows(readme_table.backward())
    assert header[1:] == ["d = 64", "d = 128"]
    assert found == [
        ["bfloat16", "255.4 (0.85)", ""],
        ["float64", "", "10.0"],
        ["float32, causal", "22.0 (2.00)", ""],
    ]


def test_tables_are_put_between_their_comments(monkeypatch):
    made = {"forward": lambda: "| \\1 |", "backward": lambda: ""}
    monkeypatch.setattr(readme_table, "TABLES", made)
    begin, end = "<!-- table: {} -->\n", "<!-- end of table: {} -->"
    places = [begin.format(name) + "old" + end.format(name) for name in made]
    page = readme_table.with_tables("above " + " between ".join(places) + " below")
    forward = begin.format("forward") + "\n| \\1 |\n\n" + end.format("forward")
    backward = begin.format("backward") + end.format("backward")
    assert page == f"above {forward} between {backward} below"
    assert readme_table.with_tables(page) == page
    with pytest.raises(ValueError, match="table: backward --> and its end are there 0 times"):
        readme_table.with_tables(places[0])


def errors(option, data="normal", d=64, dtype="float16", kernel="sm80", **gradients):
    point = {"dtype": dtype, "kernel": kernel, "d": d, "option": option, "data": data}
    return {**point, "gradients": gradients}


def one(error, ratio, allowed=None):
    found = {"max_error": error, "exact_rms": 0.5, "max_ratio": ratio, "rms_ratio": ratio / 2}
    if allowed is not None:
        found |= {"of_allowed_max": allowed, "of_allowed_rms": allowed / 2}
    return found


@pytest.fixture
def found_errors(monkeypatch):
    points = [
        errors("plain", q=one(1e-3, 0.8, 0.4), k=one(2e-3, 0.5, 0.9)),
        errors("plain", d=128, q=one(5e-4, 1.5, 1.25), k=one(1e-3, 0.4, 0.2)),
        errors("sinks", q=one(1e-3, 1.0, 0.5), sinks=one(1e-2, 700.0)),
        errors("plain", data="x30", q=one(4e-3, 3.0), k=one(1e-3, 2.0)),
    ]
    results = {"gradient_errors": {"points": points}}
    monkeypatch.setattr(gradient_tables, "load", lambda name: results[name])


def test_errors_are_the_worst_of_the_head_dims(found_errors):
    header, _, *found = rows(gradient_tables.errors())
    assert header[1:] == ["option", "dq", "dk", "dv", "dbias", "dalibi_slopes", "dsinks"]
    assert found == [
        ["float16 `sm80`", "plain", "2.0e-03 (1.50, 0.75)", "4.0e-03 (0.50, 0.25)", "", "", "", ""],
        ["float16 `sm80`", "sinks", "2.0e-03 (1.00, 0.50)", "", "", "", "", "2.0e-02"],
    ]


def test_errors_of_data_are_the_worst_of_the_options(found_errors):
    _, _, *found = rows(gradient_tables.errors_of_data())
    assert [row[1:4] for row in found] == [
        ["normal", "2.0e-03 (1.50, 0.75)", "4.0e-03 (0.50, 0.25)"],
        ["x30", "8.0e-03 (3.00, 1.50)", "2.0e-03 (2.00, 1.00)"],
    ]


def test_what_is_beyond_the_rule_is_listed(found_errors):
    said, table = gradient_tables.judged().split("\n\n")
    assert said == "4 of 5 gradients are within it."
    assert rows(table)[2:] == [["dq, float16 sm80 plain normal, d = 128", "1.25", "0.62"]]


def test_what_is_not_measured_is_said(monkeypatch):
    monkeypatch.setattr(speed_tables, "measured", lambda *names: "time_backward" not in names)
    monkeypatch.setattr(speed_tables, "where", lambda name: name)
    made = {"here": (lambda: "| a |", ["growth"]), "not": (lambda: "| b |", ["time_backward"])}
    monkeypatch.setattr(speed_tables, "TABLES", made)
    assert speed_tables.texts() == {"here": "| a |\n\n(growth)", "not": "(Not measured yet.)"}
