"""Gradients by central differences of the oracle's results, and the calls to compare them on."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from cupy_flash import reference
from problems import Case
from strategies import OPTION_AXES, with_options

STEP = 2.0**-17
TOLERANCE = 1e-6

# One value of each thing that decides on a term of the gradients; every two meet.
COMBINED = {axis: values for axis, values in OPTION_AXES.items() if "dtype" not in axis} | {
    "form": ("2d", "3d", "grouped", "q without heads", "5d", "k and v without batch"),
    "offset": (None, -1, 2),
    "scale": (None, -0.7),
    "poison": (False, True),
}
FORMS: dict[str, dict[str, Any]] = {
    "2d": {"batch": (), "heads": None, "kv_heads": None},
    "3d": {"batch": (3,), "heads": None, "kv_heads": None},
    "grouped": {"batch": (2,), "heads": 4, "kv_heads": 2},
    "q without heads": {"batch": (1,), "heads": 1, "kv_heads": 2},
    "5d": {"batch": (2, 1), "heads": 2, "kv_heads": 1},
    "k and v without batch": {"batch": (2,), "heads": 2, "kv_heads": 2},
}


def combined(row: dict[str, Any], seed: int) -> Case:
    pick = random.Random(f"{row} {seed}")
    m, n, d, p = (pick.randint(1, top) for top in (5, 6, 4, 3))
    case = Case(
        **FORMS[row["form"]],
        m=m,
        n=n,
        d=d,
        p=p,
        dtypes=("float64",) * 3,
        causal=row["causal"],
        offset=row["offset"],
        scale=row["scale"],
        lengths=row["lengths"],
        squeeze=row["form"] == "k and v without batch" and row["lengths"] is None,
        seed=pick.randint(0, 1 << 16),
    )
    dtypes = dict.fromkeys(("bias_dtype", "alibi_dtype", "sinks_dtype"), "float64")
    return replace(with_options(case, row | dtypes, pick), poison=row["poison"])


def call_of(case: Case) -> dict[str, Any]:
    """Return the arguments of a case's call by name, all numbers in float64."""
    arrays = case.build()
    call = {name: x.numpy() for name, x in arrays.inputs().items()} | arrays.options()
    numbers = ("q", "k", "v", "bias", "sinks", "alibi_slopes")
    return call | {name: call[name].astype(float) for name in numbers if name in call}


def names_of(call: dict[str, Any]) -> tuple[str, ...]:
    """Return what a call has gradients of."""
    given = (name for name in ("bias", "sinks", "alibi_slopes") if name in call)
    return ("q", "k", "v", *given, "scale")


def gradients(do: Any, call: dict[str, Any], **more: Any) -> Any:
    options = {name: x for name, x in call.items() if name not in ("q", "k", "v")}
    return reference.attention_backward(do, call["q"], call["k"], call["v"], **options, **more)


def of_results(rng: np.random.Generator, call: dict[str, Any]) -> tuple[Any, Any]:
    """Draw gradients of out and lse, NaN where rows see no key and where lse is -inf."""
    got = reference.attention(**call)
    do, dlse = (rng.standard_normal(x.shape) for x in (got.out, got.lse))
    do[got.visible == 0] = dlse[np.isneginf(got.lse)] = np.nan
    return do, dlse


Results = Callable[[dict[str, Any]], tuple[Any, Any]]


def exact_results(call: dict[str, Any]) -> tuple[Any, Any]:
    got = reference.attention(**call)
    return got.out, got.lse


def loss(
    call: dict[str, Any], do: Any, dlse: Any, results: Results = exact_results
) -> tuple[Any, Any]:
    """Return the number whose gradients with respect to out and lse these are, and its size."""
    matters, of_lse = np.isfinite(do), np.isfinite(dlse)
    out, lse = results(call)
    terms = [*(out[matters] * do[matters]).ravel(), *(lse[of_lse] * dlse[of_lse]).ravel()]
    return sum(terms), sum(map(abs, terms))


def one_by_one(x: Any) -> Iterator[Any]:
    for index in np.ndindex(x.shape):
        direction = np.zeros(x.shape)
        direction[index] = 1
        yield direction


def excess(
    call: dict[str, Any],
    do: Any,
    dlse: Any,
    name: str,
    gradient: Any,
    directions: Iterable[Any],
    results: Results = exact_results,
) -> float:
    """Return how far a gradient is off what the loss changes by, beyond what may be; at most 0."""
    # A cap bends within its own size. A float64 takes up steps that small in a longdouble only.
    h = STEP * min(1, call.get("softcap") or 1)
    x = call.get(name, reference.default_scale(call["q"].shape[-1]))
    x = np.asarray(x, gradient.dtype)
    worst = -np.inf
    for direction in directions:
        (up, size), (down, _) = (
            loss(call | {name: np.asarray(x + step * direction)}, do, dlse, results)
            for step in (h, -h)
        )
        largest = np.abs(gradient).max(initial=0) * np.abs(direction).sum()
        allowed = TOLERANCE * largest + 8 * np.finfo(gradient.dtype).eps * size / h
        error = abs((up - down) / (2 * h) - (gradient * direction).sum())
        worst = max(worst, error - allowed)
    return worst
