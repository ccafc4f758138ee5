"""What README.md shows is what the committed results say."""

from __future__ import annotations

from pathlib import Path

from cupy_flash import explanation
from readme_table import load, with_tables

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_performance_tables_are_the_measured_ones():
    assert with_tables(README) == README


def test_the_figures_of_memory_and_first_call_are_the_measured_ones():
    largest = load("largest_n")["dtypes"]["float32"]
    assert f"{largest['few rows']['n_computed']:,} keys" in README
    assert f"{largest['unfused']['n']:,} x" in README
    cold = [call["cold"]["first"] for call in load("first_call")["first_calls"]]
    assert f"{min(cold):.1f} to {max(cold):.1f} s cold" in README


def test_the_speed_of_the_softmaxes_is_the_measured_one():
    found = [
        point["candidates"][method]["of_copy"]
        for point in load("time_softmax")["points"]
        if point["n"] >= 64
        for method in ("online", "three_pass")
    ]
    assert f"at {min(found):.2f} to {max(found):.2f} of a copy's speed" in README


def test_explain_names_every_dtype_and_dim_where_unfused_is_faster():
    slower = {}
    for point in load("time_attention")["points"]:
        ours, unfused = (point["candidates"][name]["tflops"] for name in ("auto", "unfused"))
        if not point["causal"] and ours < unfused:
            slower[point["dtype"], point["d"]] = (round(ours, 1), round(unfused, 1))
    assert slower == explanation.SLOWER_THAN_UNFUSED
