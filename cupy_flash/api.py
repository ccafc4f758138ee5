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
        Factor of ``q_i k_j``, the score of row i and key j. Default ``1 / sqrt(d)``.
    causal : bool, optional
        Row i sees key j only if ``j <= i + offset``. Default False.
    offset : int, optional
        Row i stands at key ``i + offset``: for `causal`, `window` and `alibi_slopes`. Default
        ``n - m``, the bottom-right alignment of FlashAttention; 0 is the top-left one of
        `numpy.tri`, PyTorch and JAX::

            offset=None, m=2, n=5      offset=None, m=5, n=2
                x x x x .                  . .
                x x x x x                  . .
                                           . .
            offset=0, m=2, n=5             x .
                x . . . .                  x x
                x x . . .

        With lengths the default is ``k_length - q_length`` of each batch entry.
    window : (int or None, int or None), optional
        ``(left, right)``: row i sees the keys from ``i + offset - left`` to ``i + offset + right``,
        both included, as in Longformer [3]_. Each bound is at least 0, or None for no bound. With
        `causal` the right bound is 0. Default no window.
    mask : bool array, (..., Hq, m, n), optional
        True where row i sees key j. Broadcasts to out's leading axes, m and n, and an axis that
        broadcasts costs no memory: (batch, 1, 1, n) hides keys. Default all True.
    bias : real array, (..., Hq, m, n), optional
        Added to the scores, in their unit, the natural logarithm of a weight. One of the four
        float dtypes or an integer one; broadcasts like `mask`. -inf hides the key from the row,
        whatever its score is, NaN too. Default none.
    softcap : float, optional
        A number c > 0: the scaled score s becomes ``c * tanh(s / c)``, between -c and c, as in
        Gemma 2 [4]_. Default none.
    alibi_slopes : float array, (..., Hq), optional
        ALiBi [5]_: ``slope * abs(i + offset - j)`` is subtracted from the score. One of the four
        dtypes; broadcasts to out's leading axes. Default none.
    sinks : float array, (..., Hq), optional
        A score of one more key in every row, that has no value: attention that goes nowhere, as
        in gpt-oss; what StreamingLLM [6]_ keeps the first keys for. lse counts it, so
        ``lse_with = logaddexp(lse, sink)`` and ``out_with = out * exp(lse - lse_with)``. -inf is no
        sink. One of the four dtypes; broadcasts to out's leading axes. Default none.
    q_lengths, k_lengths : int32 or int64 array, optional
        For each batch entry (the axes before the heads; they broadcast) the number of rows and
        keys that count; those beyond are padding: never read, and padded rows of the result are 0.
        On the GPU they are read by the kernel, without waiting, and clipped to [0, m] and [0, n].
    precision : {None, "highest", "tf32"}, optional
        None and "highest": the accuracy of the dtype, for float32 too, which tensor cores then
        multiply in several parts. "tf32" permits float32 products as inaccurate as TF32's (11 bits
        a factor), where that is faster; it permits nothing in other dtypes and changes nothing
        there, nor for NumPy arrays. `explain` says what multiplies.
    return_lse : bool, optional
        Also return the row's log-sum-exp. Default False.
    out : array or tuple, optional
        Where to write: an array, or ``(out, lse)`` with None allowed. Shape and dtype of the
        result, any strides, no element shared with an input, those of options included.
    kernel : {None, "naive", "simt", "sm80", "sm90"}, optional
        Force a kernel family. None takes the fastest that can, of all but "sm90"; see `explain`.

    Returns
    -------
    out : array, (..., Hq, m, p)
        The promoted dtype, in q's memory order. A row that sees no key is 0.
    lse : array, (..., Hq, m)
        Only with `return_lse`. Natural logarithm of the sum of the exponentials of the row's
        scores and its sink, float32 (float64 for float64). A row that sees no key has its sink,
        -inf without sinks. Contiguous.

    Raises
    ------
    TypeError, ValueError
        For arrays or options that can't be used, before anything is launched or written.
    ImportError
        For another library's GPU array when CuPy isn't installed.
    CompileError
        If NVRTC refuses a kernel.

    Notes
    -----
    The options act in this order: scale, softcap, bias and ALiBi, then what a row doesn't see. With
    the sums over the keys j that row i sees::

        s = scale * (q[i] @ k[j])
        s = softcap * tanh(s / softcap)
        s = s + bias[i, j] - slope * abs(i + offset - j)
        lse[i] = log(exp(sink) + sum(exp(s)))
        out[i] = sum(exp(s - lse[i]) * v[j])

    The arrays of options don't take part in the promotion of dtypes; they are converted to the
    type that sums run in, float32 (float64 for float64). A key that no row of a head sees never
    reaches its result, even if it is NaN.

    It is the online softmax [1]_ over tiles of keys, as in FlashAttention [2]_. Results have the
    same bits on every run, and a row's bits don't depend on the batch, the other heads or the other
    rows.

    References
    ----------
    .. [1] Milakov and Gimelshein, "Online normalizer calculation for softmax", arXiv:1805.02867
    .. [2] Dao et al., "FlashAttention", arXiv:2205.14135
    .. [3] Beltagy, Peters and Cohan, "Longformer", arXiv:2004.05150
    .. [4] Gemma Team, "Gemma 2", arXiv:2408.00118
    .. [5] Press, Smith and Lewis, "Train Short, Test Long", arXiv:2108.12409
    .. [6] Xiao et al., "Efficient Streaming Language Models with Attention Sinks", arXiv:2309.17453

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

    Each row sees the key that it stands at and the one before it; with `sinks` half as much:

    >>> cf.attention(q, k, v, window=(1, 0))
    array([[0.5],
           [1.5]])
    >>> cf.attention(q, k, v, window=(1, 0), sinks=np.array(np.log(2)))
    array([[0.25],
           [0.75]])
    >>> cf.attention(q, k, v, mask=np.array([True, False, True]))
    array([[1.],
           [1.]])
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
