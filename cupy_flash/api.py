"""The public functions: docstrings, and the straight line of a call in a few lines each."""

from __future__ import annotations

from typing import Any

from cupy_flash import blocked, launch
from cupy_flash.arrays import describe
from cupy_flash.options import check_options
from cupy_flash.plan import recall
from cupy_flash.problem import SMALL_ARRAYS, make_problem


def attention(
    q: Any,
    k: Any,
    v: Any,
    /,
    *,
    scale: float | None = None,
    causal: bool = False,
    offset: int | None = None,
    window: tuple[int | None, int | None] | None = None,
    mask: Any = None,
    bias: Any = None,
    softcap: float | None = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    q_lengths: Any = None,
    k_lengths: Any = None,
    precision: str | None = None,
    return_lse: bool = False,
    out: Any = None,
    kernel: str | None = None,
) -> Any:
    """Softmax attention, ``softmax(scale * q @ k.T) @ v``, in O(n) memory.

    A generalised ufunc with signature ``(m,d),(n,d),(n,p)->(m,p)``: the last two axes are the
    matrices and leading axes broadcast as in `numpy.matmul`. With four or more dimensions axis -3
    is the head axis, and the number of query heads may be a multiple of the number of key heads
    (grouped heads: query head h uses key head ``h // (Hq // Hkv)``). In three dimensions axis -3
    is a batch axis. Any strides are taken as they are: arrays of shape (batch, seq, head, dim) are
    passed as ``x.swapaxes(-2, -3)``, a free view.

    CuPy arrays are computed by CUDA kernels on their device and the current stream, without
    waiting; NumPy arrays by `cupy_flash.blocked`, with the same meaning.

    Parameters
    ----------
    q : array, (..., Hq, m, d)
        Queries: float16, bfloat16 (ml_dtypes), float32 or float64.
    k : array, (..., Hkv, n, d)
        Keys.
    v : array, (..., Hkv, n, p)
        Values. q, k and v may differ in dtype and are promoted as NumPy would.
    scale : float, optional
        Factor of the scores. Default ``1 / sqrt(d)``.
    causal : bool, optional
        Row i sees key j only if ``j <= i + offset``. Default False.
    offset : int, optional
        Row i stands at key ``i + offset``. Default ``n - m``, the bottom-right alignment of
        FlashAttention; 0 is the top-left one of `numpy.tri`, PyTorch and JAX::

            offset=None, m=2, n=5      offset=None, m=5, n=2
                x x x x .                  . .
                x x x x x                  . .
                                           . .
            offset=0, m=2, n=5             x .
                x . . . .                  x x
                x x . . .

        With lengths the default is ``k_length - q_length`` of each batch entry.
    q_lengths, k_lengths : int32 or int64 array, optional
        For each batch entry (the axes before the heads; they broadcast) the number of rows and
        keys that count; those beyond are padding: never read, and padded rows of the result are 0.
        On the GPU they are read by the kernel, without waiting, and clipped to [0, m] and [0, n].
    precision : {None, "highest", "tf32"}, optional
        None and "highest": the accuracy of the dtype, for float32 too. "tf32" permits TF32
        products for float32; no kernel of this version uses them.
    return_lse : bool, optional
        Also return the row's log-sum-exp. Default False.
    out : array or tuple, optional
        Where to write: an array, or ``(out, lse)`` with None allowed. Shape and dtype of the
        result, any strides, no element shared with an input.
    kernel : {None, "naive", "simt", "sm80", "sm90"}, optional
        Force a kernel family. None takes the fastest that can; see `explain`.
    window, mask, bias, softcap, alibi_slopes, sinks
        Not implemented in this version: anything but None is a NotImplementedError.

    Returns
    -------
    out : array, (..., Hq, m, p)
        The promoted dtype, in q's memory order. A row that sees no key is 0.
    lse : array, (..., Hq, m)
        Only with `return_lse`. Natural logarithm of the sum of the exponentials of the row's
        scores, float32 (float64 for float64), -inf for a row that sees no key. Contiguous.

    Raises
    ------
    TypeError, ValueError
        For arrays or options that can't be used, before anything is launched or written.
    NotImplementedError
        For an option of a later version.
    ImportError
        For another library's GPU array when CuPy isn't installed.
    CompileError
        If NVRTC refuses a kernel.

    Notes
    -----
    The online softmax of Milakov and Gimelshein (arXiv:1805.02867) over tiles of keys, as in
    FlashAttention (arXiv:2205.14135). Results have the same bits on every run, and a row's bits
    don't depend on the batch, the other heads or the other rows.

    Examples
    --------
    >>> import numpy as np, cupy_flash as cf
    >>> q = np.zeros((2, 4)); k = np.zeros((3, 4)); v = np.arange(3.0)[:, None]
    >>> cf.attention(q, k, v)
    array([[1.],
           [1.]])
    >>> cf.attention(q, k, v, causal=True)
    array([[0.5],
           [1. ]])
    """
    results = out if type(out) is tuple else (out, None)
    given = (q, k, v, *results)
    if not (mask is bias is alibi_slopes is sinks is q_lengths is k_lengths is None):
        given = (q, k, v, mask, bias, alibi_slopes, sinks, q_lengths, k_lengths, *results)
    values: tuple[Any, ...]
    values = (scale, causal, offset, window, softcap, precision, return_lse, kernel)
    if type(window) is tuple:
        # Its bounds too: a key tells (1, 0) from (True, 0) by the types of values.
        values += window
    plan, key, pointers = recall(given, values)
    if plan is not None:
        out, lse = launch.run(plan, pointers, *results)
        return (out, lse) if return_lse else out
    options = check_options(
        scale=scale,
        causal=causal,
        offset=offset,
        window=window,
        mask=mask,
        bias=bias,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        q_lengths=q_lengths,
        k_lengths=k_lengths,
        precision=precision,
        return_lse=return_lse,
        kernel=kernel,
    )
    out, lse = _outputs(out)
    problem = make_problem(
        describe("q", q),
        describe("k", k),
        describe("v", v),
        options,
        None if out is None else describe("out", out),
        None if lse is None else describe("lse", lse),
    )
    small = zip(SMALL_ARRAYS, (mask, bias, alibi_slopes, sinks, q_lengths, k_lengths), strict=True)
    arrays = {"q": q, "k": k, "v": v} | {name: x for name, x in small if x is not None}
    if problem.module == "cupy":
        out, lse = launch.forward(problem, arrays, out, lse, key)
    else:
        out, lse = blocked.forward(problem, arrays, out, lse)
    return (out, lse) if return_lse else out


def _outputs(out: Any) -> tuple[Any, Any]:
    if not isinstance(out, tuple):
        return out, None
    if len(out) != 2:
        raise ValueError(
            f"attention: out is a tuple of {len(out)}; it must be (out, lse), None allowed"
        )
    return out
