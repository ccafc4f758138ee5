"""The public function `softmax`: its docstring, and the straight line of a call."""

from __future__ import annotations

from typing import Any

from cupy_flash import launch as launches
from cupy_flash.arrays import describe
from cupy_flash.plan import recall
from cupy_flash.softmaxes import blocked, launch
from cupy_flash.softmaxes.problem import make_softmax_problem


def softmax(x: Any, axis: int = -1, *, method: str = "online", out: Any = None) -> Any:
    """Softmax along one axis, ``exp(x - max(x)) / sum(exp(x - max(x)))``.

    CuPy arrays are computed by CUDA kernels on their device and the current stream, without
    waiting; NumPy arrays by the same algorithm in NumPy.

    Parameters
    ----------
    x : array
        float16, bfloat16 (ml_dtypes), float32 or float64, with at least one axis and any strides.
    axis : int, optional
        The axis whose elements sum to 1. Default -1.
    method : {"online", "three_pass"}, optional
        "three_pass" takes the maximum in a first pass over x, the sum in a second one and writes in
        a third. "online" takes maximum and sum together: where a later element raises the maximum,
        the sum so far is rescaled. On a GPU, rows up to 32 KiB (float32: 64 KiB) are held in
        registers and read once by either.
    out : array, optional
        Where to write: x's shape and dtype, any strides; x itself, or no element shared with x.

    Returns
    -------
    array, of x's shape
        x's dtype. A new one is contiguous in x's memory order. A row of nothing but -inf is 0, as
        in `cupy_flash.attention`; a row with a NaN or with +inf is NaN, as the formula says.

    Raises
    ------
    TypeError, ValueError
        For arguments that can't be used, before anything is launched or written.
    ImportError
        For another library's GPU array when CuPy isn't installed.
    CompileError
        If NVRTC refuses a kernel.

    Notes
    -----
    Milakov and Gimelshein, "Online normalizer calculation for softmax", arXiv:1805.02867:
    algorithm 2 ("safe softmax") and algorithm 3. Maximum and sum are float32 for float16, bfloat16
    and float32, float64 for float64; the result is rounded once.

    Results have the same bits on every run, and a row's bits depend on nothing but its elements,
    their number, dtype and method (on the GPU's architecture too, as compilers differ).

    Examples
    --------
    >>> import numpy as np, cupy_flash as cf
    >>> cf.softmax(np.array([[0.0, 0.0], [0.0, -np.inf]]))
    array([[0.5, 0.5],
           [1. , 0. ]])
    """
    plan, key, pointers = recall((x, out), ("softmax", axis, method, out is x))
    if plan is not None:
        return launches.run(plan, pointers, out, None)[0]
    problem = make_softmax_problem(
        describe("x", x, "softmax"),
        axis,
        method,
        None if out is None else describe("out", out, "softmax"),
    )
    if problem.module == "cupy":
        return launch.forward(problem, x, out, key)
    return blocked.forward(problem, x, out)
