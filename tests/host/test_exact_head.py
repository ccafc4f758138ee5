"""What the oracle says of errors, against its docstring's steps in loops over Python numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from by_hand import dot, draw
from cupy_flash import reference


def test_what_the_bounds_need_against_loops():
    """A, S, and what score errors move the output by; scores large enough to see its curvature."""
    q, k, v = draw(1, (3, 4), (5, 4), (5, 2))
    q = q * q.dtype.type(3e4)
    got = reference.attention(q, k, v, scale=-0.5, causal=True, offset=1)
    for i in range(3):
        visible = range(i + 2)
        scores = [-0.5 * float(dot(q[i], k[j])) for j in visible]
        sizes = [0.5 * float(dot(np.abs(q[i]), np.abs(k[j]))) for j in visible]
        total = math.fsum(math.exp(s - max(scores)) for s in scores)
        P = [math.exp(s - max(scores)) / total for s in scores]
        delta = [
            2.0**-24 * ((4 / 2 + 4) * size + 4 * (max(scores) - s) + 8)
            for s, size in zip(scores, sizes, strict=True)
        ]
        grown = [p * math.expm1(x) for p, x in zip(P, delta, strict=True)]
        shrunk = math.fsum(p * math.exp(-x) for p, x in zip(P, delta, strict=True))
        lse_error = 2.0**-24 * (3 * math.sqrt(4) + 4) * max(sizes)
        np.testing.assert_allclose(got.lse_errors[i], lse_error, rtol=1e-13)
        for x in range(2):
            size = np.abs(v[: i + 2, x].astype(float))
            np.testing.assert_allclose(got.probabilities_abs_v[i, x], np.dot(P, size), rtol=1e-13)
            out = abs(float(np.dot(P, v[: i + 2, x])))
            moved = (np.dot(grown, size) + out * math.fsum(grown)) / shrunk
            np.testing.assert_allclose(got.out_errors[i, x], moved, rtol=1e-9)


@pytest.mark.parametrize("names", [("softcap",), ("bias",), ("slope",), ("sink",), "all"])
def test_what_each_option_rounds_against_loops(names):
    """The steps of `exact_head`'s docstring, for one row, one number at a time."""
    q, k, v = draw(2, (1, 4), (5, 4), (5, 2))
    bias = np.random.default_rng(2).normal(0, 3, (1, 5))
    given = {"softcap": 2.0, "bias": bias, "slope": 0.75, "sink": 1.5}
    given = {name: x for name, x in given.items() if names == "all" or name in names}
    renamed = {"slope": "alibi_slopes", "sink": "sinks"}
    options = {
        renamed.get(name, name): np.array(x) if name in renamed else x for name, x in given.items()
    }
    got = reference.attention(q, k, v, scale=0.5, offset=3, **options)
    e, c = 2.0**-24, given.get("softcap")
    scores, for_weights, for_lse = [], [], []
    for j in range(5):
        size = 0.5 * float(dot(np.abs(q[0]), np.abs(k[j])))
        s = 0.5 * float(dot(q[0], k[j]))
        errors = [e * (4 / 2 + 4) * size, e * (3 * math.sqrt(4) + 4) * size]
        if c is not None:
            spread = [c * (math.tanh(abs(s) / c) - math.tanh((abs(s) - r) / c)) for r in errors]
            s = c * math.tanh(s / c)
            errors = [r + 10 * e * abs(s) + c * 2.0**-126 for r in spread]
        if "bias" in given:
            s += bias[0, j]
            errors = [r + e * (abs(bias[0, j]) + abs(s)) for r in errors]
        if "slope" in given:
            s -= 0.75 * abs(3 - j)
            errors = [r + e * (3 * 0.75 * abs(3 - j) + abs(s)) for r in errors]
        scores.append(s)
        for_weights.append(errors[0])
        for_lse.append(errors[1])
    steps, sinks = 8, []
    if "sink" in given:
        steps, sinks = 13, [1.5]
        for_lse.append(e * 1.5)
    top = max(scores + sinks)
    total = math.fsum(math.exp(s - top) for s in scores + sinks)
    P = [math.exp(s - top) / total for s in scores + sinks]
    errors = for_weights + [e * 1.5 for _ in sinks]
    delta = [r + e * (4 * (top - s) + steps) for r, s in zip(errors, scores + sinks, strict=True)]
    grown = [p * math.expm1(x) for p, x in zip(P, delta, strict=True)]
    shrunk = math.fsum(p * math.exp(-x) for p, x in zip(P, delta, strict=True))
    np.testing.assert_allclose(got.lse_errors[0], max(for_lse), rtol=1e-8)
    for x in range(2):
        out = abs(math.fsum(p * float(value) for p, value in zip(P, v[:, x], strict=False)))
        size = math.fsum(g * abs(float(value)) for g, value in zip(grown, v[:, x], strict=False))
        moved = (size + out * math.fsum(grown)) / shrunk
        np.testing.assert_allclose(got.out_errors[0, x], moved, rtol=1e-8)
