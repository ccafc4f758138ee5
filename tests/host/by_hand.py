"""Attention by loops over Python numbers that anybody can check by reading."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from problems import DTYPES


def dot(x, y):
    return sum(
        (Fraction(float(a)) * Fraction(float(b)) for a, b in zip(x, y, strict=True)), Fraction()
    )


def by_hand(
    q,
    k,
    v,
    *,
    scale,
    causal=False,
    offset=0,
    window=(None, None),
    mask=None,
    bias=None,
    softcap=None,
    slope=None,
    sink=-math.inf,
    rows=None,
    keys=None,
):
    """Attention of one head in rationals and correctly rounded sums: (out, lse)."""
    m, n, p = len(q), len(k), v.shape[1]
    out, lse = [[0.0] * p for _ in range(m)], [sink] * m

    def sees(i, j):
        distance = j - (i + offset)
        left, right = window
        return (
            (not causal or distance <= 0)
            and (left is None or -distance <= left)
            and (right is None or distance <= right)
            and (mask is None or mask[i, j])
            and (bias is None or bias[i, j] != -math.inf)
        )

    def score(i, j):
        s = float(Fraction(scale) * dot(q[i], k[j]))
        if softcap is not None:
            s = softcap * math.tanh(s / softcap)
        if bias is not None:
            s += float(bias[i, j])
        return s if slope is None else s - float(slope) * abs(i + offset - j)

    for i in range(m if rows is None else rows):
        visible = [j for j in range(n if keys is None else keys) if sees(i, j)]
        if not visible:
            continue
        scores = {j: score(i, j) for j in visible}
        top = max(*scores.values(), sink)
        weights = {j: math.exp(score - top) for j, score in scores.items()}
        total = math.fsum([*weights.values(), math.exp(sink - top)])
        lse[i] = top + math.log(total)
        for x in range(p):
            out[i][x] = math.fsum(weights[j] * float(v[j, x]) for j in visible) / total
    return np.array(out).reshape(m, p), np.array(lse)


def draw(seed, *shapes, dtype="float32"):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(DTYPES[dtype]) for shape in shapes]
