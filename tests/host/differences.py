"""Gradients by central differences of the oracle's results, and the calls to compare them on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from cupy_flash import reference
from problems import Case

STEP = 2.0**-17
TOLERANCE = 1e-6


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


def loss(call: dict[str, Any], do: Any, dlse: Any) -> tuple[Any, Any]:
    """Return the number whose gradients with respect to out and lse these are, and its size."""
    got = reference.attention(**call)
    sees, finite = got.visible > 0, ~np.isneginf(got.lse)
    terms = [*(got.out[sees] * do[sees]).ravel(), *(got.lse[finite] * dlse[finite]).ravel()]
    return sum(terms), sum(map(abs, terms))


def one_by_one(x: Any) -> Iterator[Any]:
    for index in np.ndindex(x.shape):
        direction = np.zeros(x.shape)
        direction[index] = 1
        yield direction


def excess(
    call: dict[str, Any], do: Any, dlse: Any, name: str, gradient: Any, directions: Iterable[Any]
) -> float:
    """Return how far a gradient is off what the loss changes by, beyond what may be; at most 0."""
    # A cap bends within its own size. A float64 takes up steps that small in a longdouble only.
    h = STEP * min(1, call.get("softcap") or 1)
    x = call.get(name, reference.default_scale(call["q"].shape[-1]))
    x = np.asarray(x, np.longdouble)
    worst = -np.inf
    for direction in directions:
        (up, size), (down, _) = (
            loss(call | {name: x + step * direction}, do, dlse) for step in (h, -h)
        )
        largest = np.abs(gradient).max(initial=0) * np.abs(direction).sum()
        allowed = TOLERANCE * largest + 8 * np.finfo(gradient.dtype).eps * size / h
        error = abs((up - down) / (2 * h) - (gradient * direction).sum())
        worst = max(worst, error - allowed)
    return worst
