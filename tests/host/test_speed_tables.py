"""Tables of docs/speed.md from made-up results."""

from __future__ import annotations

import pytest

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
