"""The fixed problems of `python -m cupy_flash check`: small, and each aimed at one thing."""

from __future__ import annotations

from typing import Any

from cupy_flash.commands.check_case import Check, Shape, Small


def _self(name: str, shape: Shape, **more: Any) -> Check:
    """Make a problem whose q, k and v have one shape."""
    return Check(name, shape, shape, shape, **more)


def _cross(name: str, m: int, n: int, d: int = 24, p: int | None = None, **more: Any) -> Check:
    """Make a problem of two heads with m rows and n keys."""
    return Check(name, (1, 2, m, d), (1, 2, n, d), (1, 2, n, d if p is None else p), **more)


CAUSAL = {"causal": True}

CHECKS = (
    _self("square", (2, 3, 65, 32)),
    _cross("one-row", 1, 200, 64),
    _cross("one-key", 70, 1),
    _self("one-element", (1, 1)),
    Check("two-axes", (33, 24), (47, 24), (47, 40)),
    Check("three-axes-broadcast", (3, 20, 16), (1, 30, 16), (30, 16)),
    Check("five-axes-broadcast", (2, 1, 4, 17, 8), (1, 3, 2, 19, 8), (2, 19, 8)),
    Check("grouped-heads", (2, 8, 33, 32), (2, 2, 70, 32), (2, 2, 70, 32)),
    Check("one-key-head", (1, 6, 40, 16), (1, 1, 66, 16), (1, 1, 66, 16), CAUSAL),
    _self("causal-square", (1, 2, 129, 16), options=CAUSAL),
    _cross("causal-more-keys", 40, 133, options=CAUSAL),
    _cross("causal-more-rows", 133, 40, options=CAUSAL),
    _cross("causal-top-left-more-keys", 40, 133, options={"causal": True, "offset": 0}),
    _cross("causal-top-left-more-rows", 133, 40, options={"causal": True, "offset": 0}),
    _cross("causal-first-rows-empty", 70, 70, options={"causal": True, "offset": -65}),
    _cross("causal-sees-all", 70, 70, options={"causal": True, "offset": 10**12}),
    _cross("causal-sees-nothing", 70, 70, options={"causal": True, "offset": -(10**12)}),
    _cross("one-column", 35, 70, 1),
    _cross("odd-columns", 35, 70, 3, 5),
    _cross("columns-above-a-bucket", 35, 70, 33, 65),
    _cross("wide-keys-narrow-values", 35, 70, 100, 36),
    _cross("narrow-keys-wide-values", 35, 70, 40, 200),
    _cross("columns-128", 35, 70, 128, options=CAUSAL),
    _cross("columns-256", 35, 70, 256),
    _cross("columns-257", 20, 40, 257, 16),
    _cross("values-300", 20, 40, 16, 300),
    _cross("many-keys", 30, 1100, 16),
    _cross("many-rows", 600, 50, 16),
    _cross("many-causal", 270, 600, 8, options=CAUSAL),
    _self("k-lengths", (3, 2, 70, 16), k_lengths=(70, 1, 33)),
    _self("q-lengths", (3, 2, 70, 16), q_lengths=(70, 1, 33)),
    _self(
        "lengths-causal",
        (3, 2, 70, 16),
        options=CAUSAL,
        q_lengths=(64, 5, 70),
        k_lengths=(70, 60, 3),
    ),
    _self("lengths-zero", (2, 2, 40, 16), q_lengths=(40, 0), k_lengths=(0, 40)),
    _self("layout-batch-row-head", (2, 3, 65, 24), layout="(batch, row, head, column)"),
    _self("layout-transposed", (2, 2, 65, 24), layout="transposed"),
    _self("layout-reversed", (2, 2, 65, 24), layout="rows reversed", options=CAUSAL),
    _self("layout-gaps", (2, 2, 65, 24), layout="every second column"),
    _self("layout-misaligned", (1, 1, 65, 21), layout="misaligned"),
    _cross("no-rows", 0, 40),
    _cross("no-keys", 40, 0),
    _cross("no-columns", 40, 70, 0, 16),
    _cross("no-values", 40, 70, 16, 0),
    _self("no-batch", (0, 2, 40, 16)),
    _cross("scale-zero", 40, 70, options={"scale": 0.0}),
    _cross("scale-negative", 40, 70, options={"scale": -0.7}),
    _cross("sharp-scores", 66, 130, 32, q_scale=12.0),
    _cross("sharp-causal", 130, 130, 32, q_scale=12.0, options=CAUSAL),
    _cross("window-both-sides", 130, 150, options={"window": (20, 7)}),
    _cross("window-causal", 270, 600, options={"window": (64, None), "causal": True}),
    _cross("window-left", 133, 40, options={"window": (30, None), "offset": 3}),
    _cross("window-one-key", 70, 70, options={"window": (0, 0)}),
    _cross("window-sees-nothing", 70, 70, options={"window": (9, 9), "offset": 10**12}),
    _self(
        "window-lengths",
        (3, 2, 200, 24),
        options={"window": (40, 3)},
        q_lengths=(200, 60, 3),
        k_lengths=(150, 200, 0),
    ),
    _cross("mask-pairs", 66, 140, mask=Small((2, 66, 140), "bool")),
    _self("mask-keys", (2, 3, 140, 24), mask=Small((2, 1, 1, 140), "bool")),
    _cross("mask-rows", 66, 140, mask=Small((66, 1), "bool")),
    _cross("mask-nothing-visible", 66, 140, mask=Small((2, 1, 140), "bool", 0.0)),
    _cross("mask-few-visible", 66, 700, mask=Small((66, 700), "bool", 0.01)),
    Check(
        "mask-of-heads-causal",
        *((2, 4, 66, 24), (2, 2, 140, 24), (2, 2, 140, 24)),
        CAUSAL,
        mask=Small((4, 1, 140), "bool"),
    ),
    _cross("bias-pairs", 66, 140, bias=Small((1, 2, 66, 140))),
    _cross("bias-keys-int8", 66, 140, bias=Small((140,), "int8")),
    _cross("bias-rows-float64", 66, 140, bias=Small((2, 66, 1), "float64")),
    _cross("softcap", 66, 140, q_scale=12.0, options={"softcap": 20.0}),
    _cross("softcap-tiny", 66, 140, options={"softcap": 1e-3}),
    _cross("softcap-huge", 66, 140, options={"softcap": 1e6}),
    _cross("alibi", 66, 140, alibi_slopes=Small((2,))),
    _self(
        "alibi-lengths",
        (2, 2, 70, 24),
        alibi_slopes=Small((2, 1), "float32"),
        q_lengths=(70, 20),
        k_lengths=(33, 70),
    ),
    _cross("sinks", 66, 140, sinks=Small((2,))),
    _cross(
        "sinks-and-empty-rows",
        133,
        40,
        options=CAUSAL,
        sinks=Small((1, 2), "float64"),
    ),
    Check(
        "all-options",
        *((2, 4, 140, 24), (2, 2, 150, 24), (2, 2, 150, 24)),
        {"window": (70, 0), "causal": True, "softcap": 15.0},
        q_scale=6.0,
        q_lengths=(140, 90),
        k_lengths=(101, 150),
        mask=Small((2, 1, 140, 150), "bool", 0.8),
        bias=Small((4, 1, 150)),
        alibi_slopes=Small((4,)),
        sinks=Small((4,)),
    ),
)
