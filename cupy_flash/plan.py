"""Plans: what a warm call needs beside its addresses, kept under everything that decides it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cupy_flash.arrays import describe, share_an_element
from cupy_flash.step import Step

# A plan of one launch takes about 4 KB of host memory; the oldest one makes room for the next.
MOST_PLANS = 1024
# A call of more launches than this is planned anew each time.
MOST_STEPS = 128
# Vector loads want addresses at its multiples; no dtype needs more.
ALIGNMENT = 16

Key = tuple[Any, ...]

_plans: dict[Key, Plan | BackwardPlan] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class Fresh:
    """A result that the call allocates.

    Attributes
    ----------
    shape : tuple of int
        Its extents.
    dtype : numpy.dtype
        The element type.
    size : int
        Its bytes.
    strides : tuple of int or None
        Bytes from an element to the next one of each axis; None if it is C-contiguous.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    size: int
    strides: tuple[int, ...] | None = None


class Pair(NamedTuple):
    """A result and another array, by their positions among the arrays given.

    Their bytes lie apart unless the result's address less the other's is between `below` and
    `above`.
    """

    result: int
    other: int
    below: int
    above: int


@dataclass(frozen=True)
class Plan:
    """A call without its addresses.

    Attributes
    ----------
    device : int
        The CUDA device that computes it.
    pairs : tuple of Pair
        The arrays given that may not share an element.
    out, lse : Fresh or None
        How a result is allocated; None if the caller gave the array or doesn't want it.
    steps : iterable of Step
        The launches in their order, for the addresses of the arrays given and then those of the
        fresh results and of the workspace: a tuple, or of more than ``MOST_STEPS`` an iterator.
    workspace : tuple of int
        Bytes of each array that only the launches see.
    """

    device: int
    pairs: tuple[Pair, ...]
    out: Fresh | None
    lse: Fresh | None
    steps: Iterable[Step]
    workspace: tuple[int, ...] = ()


@dataclass(frozen=True)
class BackwardPlan:
    """A call of the backward pass without its addresses.

    Attributes
    ----------
    device : int
        The CUDA device that computes it.
    inputs : int
        How many arrays of a call it reads; the results given come after them, then the workspace.
    pairs : tuple of Pair
        The arrays given that may not share an element.
    fresh : tuple of Fresh or None
        How each gradient is allocated; None if the caller gave the array.
    steps : iterable of Step
        The launches in their order, for the addresses of the arrays given, of the gradients and of
        the scratch arrays.
    scratch : tuple of int
        Where each scratch array begins in the workspace.
    workspace : int
        Bytes of all of them.
    """

    device: int
    inputs: int
    pairs: tuple[Pair, ...]
    fresh: tuple[Fresh | None, ...]
    steps: Iterable[Step]
    scratch: tuple[int, ...]
    workspace: int


def recall(arrays: tuple[Any, ...], values: tuple[Any, ...]) -> tuple[Any, Key | None, list[int]]:
    """Find the plan of a call that has been checked and planned before.

    Of an array the key holds all that a check, the kernel choice or the struct depends on: shape,
    strides, dtype, device, alignment. Of any other argument it holds the value and the type, since
    1 equals True and isn't the same option; the caller adds the elements of a tuple. Whether a
    result shares an element with another array depends on the addresses, so that is looked at here.

    Parameters
    ----------
    arrays : tuple
        All array arguments, None for those that weren't given.
    values : tuple
        All other arguments, and the elements of those that are tuples.

    Returns
    -------
    plan : Plan or BackwardPlan, or None
        None for a call that is to be checked from the beginning.
    key : tuple or None
        What `keep` keeps its plan under; None if it can't be kept.
    pointers : list of int
        The addresses of the arrays given.
    """
    # Another thread may be importing it.
    ndarray = getattr(sys.modules.get("cupy"), "ndarray", None)
    parts: list[Any] = [values, *map(type, values)]
    pointers = []
    for x in arrays:
        if type(x) is ndarray:
            data = x.data
            pointer = data.ptr
            pointers.append(pointer)
            # Of a contiguous array the shape tells the strides that matter, those of extents above
            # 1. Asking for strides would take a fifth of the time of this function.
            strides = x._c_contiguous or x.strides
            parts.append((x.shape, strides, x.dtype, data.device_id, pointer % ALIGNMENT))
        elif x is None:
            parts.append(None)
        else:
            return None, None, pointers
    key = tuple(parts)
    try:
        plan = _plans.get(key)
    except TypeError:
        # An option that can't be hashed: an array where a number belongs, say.
        return None, None, pointers
    if plan is not None:
        for result, other, below, above in plan.pairs:
            # Most arrays lie apart, and then the exact and slow answer isn't needed.
            if below < pointers[result] - pointers[other] < above:
                given = [describe("", x) for x in arrays if x is not None]
                if share_an_element(given[result], given[other]):
                    return None, key, pointers
    return plan, key, pointers


def keep(key: Key | None, plan: Plan | BackwardPlan) -> None:
    """Keep a plan for later calls, if calls with this key are always the same call."""
    if key is None or not isinstance(plan.steps, tuple) or not all(map(_is_exact, key[0])):
        return
    with _lock:
        if len(_plans) >= MOST_PLANS and key not in _plans:
            del _plans[next(iter(_plans))]
        _plans[key] = plan


def _is_exact(value: Any) -> bool:
    """Whether values of this type mean the same when they are equal; 0.0 equals -0.0."""
    if type(value) is float or isinstance(value, np.floating):
        return bool(value != 0)
    if isinstance(value, np.bool_ | np.integer):
        return True
    if type(value) is tuple:
        return all(map(_is_exact, value))
    return value is None or type(value) in (bool, int, str)


def forget() -> None:
    """Drop every plan, after a change of what plans were made from."""
    with _lock:
        _plans.clear()
