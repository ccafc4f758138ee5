"""The kernels of the backward pass that are compiled."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np

from cover import Axes, Row, cover
from cupy_flash.arrays import ArrayInfo, planned, to_dtype
from cupy_flash.backward.passes import make_passes
from cupy_flash.backward.problem import make_backward_problem
from cupy_flash.backward.variant import BackwardVariant, StatisticsVariant, SumVariant
from cupy_flash.device import assumed
from cupy_flash.options import check_options
from cupy_flash.problem import make_problem
from cupy_flash.select import HEAD_DIM_BUCKETS, SPLIT_HEAD_DIMS
from cupy_flash.source import ELEMENT_TYPES, AnyVariant

ROWS, KEYS = 100, 90
DTYPES = (
    ("float16", "float16", "float16"),
    ("bfloat16", "bfloat16", "bfloat16"),
    ("float32", "float32", "float32"),
    ("float64", "float64", "float64"),
    ("float16", "float32", "float64"),
)
PAIRS = (2, 4, ROWS, KEYS)
# What a pass computes: the names in wrt that lead to it, the shape of the bias if its gradient is
# asked for, and which of the call's passes it is.
PASSES: dict[str, tuple[tuple[str, ...], tuple[int, ...] | None, int]] = {
    "q": (("q",), None, 0),
    "kv": (("k", "v"), None, 0),
    "k": (("k",), None, 0),
    "v": (("v",), None, 0),
    "q and pairs": (("q", "bias"), PAIRS, 0),
    "shared pairs": (("bias",), (ROWS, KEYS), 0),
    "q and numbers": (("q", "scale", "alibi_slopes", "bias"), (ROWS, 1), 0),
    "k and sums": (("k", "bias"), (KEYS,), 0),
}
# Options as calls combine them: few sets, since each meets every pass.
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window": (3, 3), "q_lengths": "int32", "k_lengths": "int64", "offset": None},
    "pairs": {"mask": PAIRS[2:], "bias": ("float16", PAIRS[2:])},
    "keys": {"mask": (KEYS,), "bias": ("float32", (KEYS,)), "softcap": 30.0, "causal": True},
    "wide": {
        "bias": ("float64", PAIRS),
        "alibi_slopes": "float32",
        "window": (3, None),
        "k_lengths": "int32",
        "softcap": 30.0,
    },
}
ARCHS = (75, 80, 86, 89, 90, 100, 120)
FEW_ARCHS = (75, 80, 90, 120)
FAMILIES: dict[str, Axes] = {
    "naive": {
        "dtypes": DTYPES,
        "pass": tuple(PASSES),
        "options": tuple(OPTIONS),
        "arch": FEW_ARCHS,
    },
    "simt": {
        "dtypes": DTYPES,
        "d": HEAD_DIM_BUCKETS["simt"],
        "p": HEAD_DIM_BUCKETS["simt"],
        "pass": tuple(PASSES),
        "options": tuple(OPTIONS),
        "arch": FEW_ARCHS,
    },
    "sm80": {
        "dtypes": DTYPES[:2],
        "d": HEAD_DIM_BUCKETS["sm80"],
        "p": HEAD_DIM_BUCKETS["sm80"],
        "unit": (16, 4, 2),
        "pass": tuple(PASSES),
        "options": tuple(OPTIONS),
        "arch": ARCHS[1:],
    },
    # The head dims that have warpgroups, with every pass and set of options.
    "sm80 groups": {
        "dtypes": DTYPES[:2],
        "d": (64, 128),
        "p": (64, 128),
        "unit": (16, 4, 2),
        "pass": tuple(PASSES),
        "options": tuple(OPTIONS),
        "arch": (90,),
    },
    # float32 by warpgroups, with every pass and set of options.
    "simt groups": {
        "dtypes": DTYPES[2:3],
        "d": SPLIT_HEAD_DIMS,
        "p": SPLIT_HEAD_DIMS,
        "pass": tuple(PASSES),
        "options": tuple(OPTIONS),
        "precision": (None, "tf32"),
        "arch": (90,),
    },
}


def rows(family: str) -> list[Row]:
    """Return a family's cover; it begins with the passes of plain calls on sm_90."""
    axes = FAMILIES[family]
    if "d" not in axes:
        return cover(axes)
    if family == "simt groups":
        plain = {"options": "plain", "precision": None}
        settings = itertools.product(("q", "kv", "k", "v"), axes["d"], axes["p"])
        return cover(axes, [plain | {"pass": x, "d": d, "p": p} for x, d, p in settings])
    dtypes = DTYPES[2:4] if family == "simt" else DTYPES[1:2]
    settings = itertools.product(dtypes, axes["d"], ("q", "kv"))
    plain = {"options": "plain", "arch": 90} | ({"unit": 16} if "unit" in axes else {})
    return cover(axes, [plain | {"dtypes": x, "d": d, "p": d, "pass": y} for x, d, y in settings])


def _shape(dtype: str, shape: tuple[int, ...]) -> ArrayInfo:
    return dataclasses.replace(planned(shape, to_dtype(dtype)), pointer=16)


def variant(family: str, row: Row) -> BackwardVariant:
    """Return the variant that a call with these settings gets."""
    wrt, bias_shape, index = PASSES[row["pass"]]
    odd = {16: 0, 4: 2, 2: 1}[row.get("unit", 16)]
    d, p = row.get("d", 64) - odd, row.get("p", 64) - odd
    given = dict(OPTIONS[row["options"]])
    if bias_shape is not None:
        dtype = given["bias"][0] if "bias" in given else "float32"
        given["bias"] = (dtype, bias_shape)
    if "alibi_slopes" in wrt:
        given.setdefault("alibi_slopes", "float32")
    arrays = {
        name: _shape(given[name], shape)
        for name, shape in (("q_lengths", (2,)), ("k_lengths", (2,)), ("alibi_slopes", (4,)))
        if name in given
    }
    if "mask" in given:
        arrays["mask"] = _shape("bool", given["mask"])
    if "bias" in given:
        arrays["bias"] = _shape(*given["bias"])
    others = {name: x for name, x in given.items() if name not in arrays}
    precision = row.get("precision")
    options = check_options(
        **{"offset": 0} | others, **arrays, precision=precision, kernel=family.split()[0]
    )
    shapes = {"q": (2, 4, ROWS, d), "k": (2, 2, KEYS, d), "v": (2, 2, KEYS, p)}
    infos = {
        name: _shape(dtype, shape)
        for (name, shape), dtype in zip(shapes.items(), row["dtypes"], strict=True)
    }
    forward = make_problem(*infos.values(), options)
    result = _shape(forward.dtype, forward.out_shape)
    lse = _shape(np.dtype(forward.accumulate).name, forward.lse_shape)
    infos |= {"do": result, "o": result, "lse": lse}
    problem = make_backward_problem(infos, options, wrt=wrt)
    return make_passes(problem, assumed(row["arch"])).gradients[index].variant


def others() -> list[AnyVariant]:
    """Return the kernels of row statistics and of sums."""
    found: list[AnyVariant] = []
    for arch, dtype in zip((75, 80, 90, 120), ELEMENT_TYPES, strict=True):
        found += [
            StatisticsVariant(arch, dtype, sinks, lanes, aligned)
            for sinks, lanes, aligned in (
                (None, 16, True),
                ("float32", 32, False),
                (dtype, 1, True),
            )
        ]
        source = "float64" if dtype == "float64" else "float32"
        found += [SumVariant(arch, source, dtype, team) for team in (False, True)]
    return found


def variants() -> list[AnyVariant]:
    """Return all of them, each once."""
    found: list[AnyVariant] = [variant(family, row) for family in FAMILIES for row in rows(family)]
    return list(dict.fromkeys(found + others()))


def name(variant: BackwardVariant) -> str:
    """Return what a kernel computes and by which tile; the rest of its name is the forward's."""
    tile = variant.tile
    shape = f"{tile.block_m}x{tile.block_n}"
    if variant.family == "simt" and tile.groups:
        shape += " groups"
    if variant.family == "sm80":
        how = "groups" if tile.groups else f"split:{tile.split}"
        shape += f"/{tile.chunk_n} stages:{tile.stages} {how}"
    side = "keys" if variant.keys else "rows"
    return f"{', '.join(variant.gradients)} of {side} {shape}"
