"""What `measure_gradient_errors.py` measures: dtypes and kernels, head dims, options and data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cupy_flash import activations
from cupy_flash.accuracy import accumulation
from cupy_flash.arrays import to_dtype

Array = np.ndarray[Any, Any]

FAMILIES = (
    ("float64", "simt"),
    ("float16", "sm80"),
    ("bfloat16", "sm80"),
    ("float32", "simt"),
    ("float32", "naive"),
)
DIMS = (64, 128)
OPTIONS = ("plain", "causal", "bias", "softcap", "ALiBi", "mask", "window", "sinks", "GQA")
DATA = ("normal", "x30", "offset", "outlier")
# The head dim of the model whose activations have been recorded.
RECORDED = 32
HEADS = 2


@dataclass(frozen=True)
class ErrorCase:
    """A call whose gradients are measured on every kind of data.

    Attributes
    ----------
    dtype : str
    kernel : str or None
        None on the NumPy path.
    d : int
        Of q, k and v; `RECORDED` for the model's activations.
    option : str
        One of `OPTIONS`.
    n : int
        Rows and keys.
    """

    dtype: str
    kernel: str | None
    d: int
    option: str
    n: int


@dataclass(frozen=True)
class Call:
    """One call: do, and the arguments of `attention`."""

    data: str
    do: Array
    arguments: dict[str, Any]

    @property
    def wrt(self) -> tuple[str, ...]:
        """Everything given that has a gradient."""
        names = ("q", "k", "v", "bias", "alibi_slopes", "sinks")
        return tuple(name for name in names if name in self.arguments)


def cases(n: int, families: Sequence[tuple[str, str | None]]) -> list[ErrorCase]:
    """Return all cases: one head dim of the naive kernel, and fewer rows where CPUs are slow."""
    return [
        ErrorCase(dtype, kernel, d, option, n // 2 if dtype == "float64" else n)
        for (dtype, kernel), d, option in itertools.product(families, (*DIMS, RECORDED), OPTIONS)
        if (d != RECORDED or option == "plain") and (kernel != "naive" or d != max(DIMS))
    ]


def calls(case: ErrorCase) -> list[Call]:
    """Draw the calls of a case, the same on every run."""
    dtype = to_dtype(case.dtype)
    if case.d == RECORDED:
        return [_recorded(dtype, case.n)]
    return [_drawn(case, data, dtype) for data in DATA]


def _drawn(case: ErrorCase, data: str, dtype: Any) -> Call:
    rng = np.random.default_rng(case.d)
    kv_heads = 1 if case.option == "GQA" else HEADS
    q, k, v, do = (
        rng.standard_normal((heads, case.n, case.d)) for heads in (HEADS, kv_heads, kv_heads, HEADS)
    )
    if data == "x30":
        q *= 30
    elif data == "offset":
        # Every score is lower by 120.
        q[..., 0] = math.sqrt(120 * math.sqrt(case.d))
        k[..., 0] = -q[0, 0, 0]
    elif data == "outlier":
        # One channel of a model's keys and values is often far above the others.
        k[..., 5] *= 10
        v[..., 5] *= 20
    # Three axes have no heads: they are those of one batch entry.
    q, k, v, do = (x[None].astype(dtype) for x in (q, k, v, do))
    arguments = {"q": q, "k": k, "v": v, **_options(case, rng, dtype)}
    if data == "offset" and "sinks" in arguments:
        arguments["sinks"] -= 120
    return Call(data, do, arguments)


def _options(case: ErrorCase, rng: np.random.Generator, dtype: Any) -> dict[str, Any]:
    n, number = case.n, accumulation(case.dtype)
    options: dict[str, dict[str, Any]] = {
        "causal": {"causal": True},
        # For both heads: its gradient is a sum over them.
        "bias": {"bias": rng.standard_normal((n, n)).astype(dtype)},
        "softcap": {"softcap": 50.0},
        "ALiBi": {"alibi_slopes": np.array([2.0**-5, 2.0**-8], number)},
        "mask": {"mask": rng.random((n, n)) < 0.7},
        "window": {"window": (n // 4, 0)},
        "sinks": {"sinks": np.array([2.0, -1.0], number)},
    }
    return options.get(case.option, {})


def _recorded(dtype: Any, n: int) -> Call:
    longest = max(activations.load(), key=lambda one: one.q.shape[1])
    q, k, v = (x[None, :4, :n].astype(dtype) for x in (longest.q, longest.k, longest.v))
    do = np.random.default_rng(0).standard_normal(q.shape).astype(dtype)
    return Call("recorded", do, {"q": q, "k": k, "v": v})
