"""Gradients in float64 of some rows, by the formulas, and the errors of what came instead."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cupy
import numpy as np

from cupy_flash.commands import sampled
from cupy_flash.unfused import cublas_problem
from peers_backward import BackwardArrays, part_of
from protocol import Entry, spoil

# Rows of S at a time: a quarter of a GB in float64 at n = 16,384.
BLOCK = 2048


@dataclass(frozen=True)
class Part:
    """Some rows of one gradient.

    Attributes
    ----------
    gradient : int
        0, 1 or 2 for those of q, k and v.
    where : tuple
        Batch entry, head and rows.
    exact : NumPy array
    """

    gradient: int
    where: tuple[Any, ...]
    exact: Any


def exact_parts(x: BackwardArrays, causal: bool, rows: int = 16) -> list[Part]:
    """Compute gradients in the first and the last head, with as many heads of k as of q.

    float64's are computed in float64 too, so that their errors are those of both.
    """
    on_gpu = not isinstance(x.q, np.ndarray) and cublas_problem() is None
    found = []
    for end in (0, -1):
        head = [_double(a[end, end], on_gpu) for a in (x.do, x.q, x.k, x.v)]
        gradients = _of_head(cupy if on_gpu else np, *head, causal)
        for at, begin, stop in sampled.places(x.q.shape[-2], rows):
            if at == end:
                where = (end, end, slice(begin, stop))
                found += [
                    Part(i, where, _host(gradient[begin:stop]))
                    for i, gradient in enumerate(gradients)
                ]
    return found


def _double(x: Any, on_gpu: bool) -> Any:
    x = x if on_gpu else _host(x)
    # By way of float32, which CuPy can convert bfloat16 to.
    return (x.astype(np.float32) if x.dtype.itemsize == 2 else x).astype(np.float64)


def _host(x: Any) -> Any:
    return x if isinstance(x, np.ndarray) else cupy.asnumpy(x)


def _of_head(xp: Any, do: Any, q: Any, k: Any, v: Any, causal: bool) -> tuple[Any, Any, Any]:
    n, d = q.shape
    q = q / math.sqrt(d)
    dq, dk, dv = (xp.zeros(x.shape) for x in (q, k, v))
    for begin in range(0, n, BLOCK):
        rows = slice(begin, min(begin + BLOCK, n))
        keys = slice(rows.stop if causal else n)
        S = q[rows] @ k[keys].T
        if causal:
            S[xp.arange(rows.stop) > xp.arange(begin, rows.stop)[:, None]] = -math.inf
        P = xp.exp(S - S.max(axis=1, keepdims=True))
        P /= P.sum(axis=1, keepdims=True)
        dv[keys] += P.T @ do[rows]
        dP = do[rows] @ v[keys].T
        dS = P * (dP - (P * dP).sum(axis=1, keepdims=True))
        dq[rows] = dS @ k[keys] / math.sqrt(d)
        dk[keys] += dS.T @ q[rows]
    return dq, dk, dv


def gradient_errors(
    found: Sequence[Any], parts: Sequence[Part], to_host: Callable[[Any], Any]
) -> dict[str, float]:
    """Return errors in units of the root mean square of each gradient's exact elements.

    Returns
    -------
    dict
        "max_error", the largest of all, and "rms_error" of the worst gradient.
    """
    largest, mean = [], []
    for i in sorted({part.gradient for part in parts}):
        own = [part for part in parts if part.gradient == i]
        exact = np.concatenate([part.exact.ravel() for part in own])
        got = [np.asarray(to_host(found[i][part.where]), np.float64).ravel() for part in own]
        off = np.abs(np.concatenate(got) - exact) / math.sqrt(np.mean(exact**2))
        largest.append(off.max())
        mean.append(math.sqrt(np.mean(off**2)))
    # NumPy's maximum keeps NaN.
    return {"max_error": float(np.max(largest)), "rms_error": float(np.max(mean))}


@dataclass(frozen=True)
class BackwardEntry(Entry):
    """A candidate on a part of a training step.

    `exact` has rows of the result for the forward call, else `Part`s of gradients.
    """

    def errors(self, call: Callable[[], Any]) -> dict[str, float]:
        if part_of(self.case) == "forward":
            return super().errors(call)
        assert isinstance(self.arrays, BackwardArrays)
        for gradient in self.arrays.gradients:
            spoil(gradient)
        result = self.candidate.once(call)
        return gradient_errors(result, self.exact, self.candidate.to_host)
