"""Standard attention, which keeps S and P in memory: what a user has without a fused kernel.

The demo and the benchmarks measure against it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cupy_flash.arrays import describe, promote
from cupy_flash.device import import_cupy
from cupy_flash.softmaxes.api import softmax

# Elements of S of one query head from which 16-bit matrices are multiplied one by one. Each product
# costs the host about 30 us: at 2048 x 2048 that is what converting takes, at 4096 x 4096 a third.
ONE_BY_ONE = 1 << 23


class CublasMissing(ImportError):
    """CuPy can't multiply matrices, because cuBLAS isn't installed."""


def standard_attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    scale: float | None = None,
    causal: bool = False,
    offset: int | None = None,
    method: str = "online",
) -> Any:
    """Compute softmax attention with matmul, softmax, matmul; S and P lie in memory.

    ::

        S = (q * scale) @ k.T                  (m, n) per head
        S[i, j] += -inf where j > i + offset   only if causal
        P = softmax(S), in place
        out = P @ v

    Both products are CuPy's (cuBLAS), in the promoted dtype: 16-bit products are summed in float32,
    and S is rounded to 16 bits. CuPy 14.2 has 16-bit products of two matrices, but converts batches
    of float16 ones to float32 and back and refuses those of bfloat16. So large matrices are
    multiplied one by one; small ones, and NumPy's, which has no 16-bit BLAS, are converted to
    float32 first and only the result is rounded. The softmax is `cupy_flash.softmax`. The scale
    goes to the smaller one of q and k, where it costs less than on S. Grouped query heads are
    folded into the rows of their key head, so k and v aren't repeated.

    Parameters
    ----------
    q : array, (..., Hq, m, d)
    k : array, (..., Hkv, n, d)
    v : array, (..., Hkv, n, p)
        All NumPy or all CuPy arrays; heads and leading axes as in `cupy_flash.attention`.
    scale : float, optional
        Default ``1 / sqrt(d)``.
    causal : bool, optional
        Row i sees key j only if ``j <= i + offset``.
    offset : int, optional
        Default ``n - m``.
    method : {"online", "three_pass"}, optional
        Of the softmax.

    Returns
    -------
    array, (..., Hq, m, p)
        The promoted dtype, C-contiguous. A row that sees no key is 0.

    Raises
    ------
    CublasMissing
        For CuPy arrays without cuBLAS; the message is that of `cublas_problem`.
    TypeError, ValueError
        For arrays that no product can take, and as `cupy_flash.softmax`.

    Notes
    -----
    Memory: S and P are one array of m n elements per head. Scores of float16 arrays beyond 65504
    overflow, unlike in `cupy_flash.attention`.
    """
    on_cpu = isinstance(q, np.ndarray)
    xp = np if on_cpu else cupy_with_cublas()
    dtype = promote({name: describe(name, x) for name, x in (("q", q), ("k", k), ("v", v))})
    softmax_dtype = np.promote_types(dtype, np.float32)
    (m, d), n = q.shape[-2:], k.shape[-2]
    one_by_one = not on_cpu and dtype.itemsize == 2 and m * n >= ONE_BY_ONE
    product_dtype = dtype if one_by_one else softmax_dtype
    q, k, v = (x.astype(product_dtype, copy=False) for x in (q, k, v))
    scale = 1 / math.sqrt(d or 1) if scale is None else scale
    factor = softmax_dtype.type(scale)
    if q.size <= k.size:
        q = (q * factor).astype(product_dtype, copy=False)
    else:
        k = (k * factor).astype(product_dtype, copy=False)
    rows, heads = rows_per_key_head(q, k, v)
    if n == 0:
        lead = np.broadcast_shapes(*(x.shape[:-2] for x in (rows, k, v)))
        return xp.zeros((*unfolded(lead, heads), m, v.shape[-1]), dtype)

    product = _each_product if one_by_one else xp.matmul
    S = product(rows, k.swapaxes(-1, -2))
    folded = S.shape
    S = S.reshape((*unfolded(folded[:-2], heads), m, n))
    P = weights(S, causal=causal, offset=offset, method=method)
    out = product(P.reshape(folded), v)
    return out.reshape((*unfolded(out.shape[:-2], heads), m, v.shape[-1])).astype(dtype, copy=False)


def weights(S: Any, *, causal: bool, offset: int | None, method: str = "online") -> Any:
    """Turn scores (..., m, n) into weights, in place; the options are `standard_attention`'s."""
    m, n = S.shape[-2:]
    if causal:
        xp = np if isinstance(S, np.ndarray) else import_cupy()
        offset = n - m if offset is None else offset
        sees = xp.arange(n) <= xp.arange(m)[:, None] + offset
        S += xp.where(sees, *xp.array((0.0, -math.inf), S.dtype))
    return softmax(S, method=method, out=S)


def _each_product(a: Any, b: Any) -> Any:
    """Multiply CuPy arrays as `cupy.matmul` does, one pair of matrices after the other."""
    cupy = import_cupy()
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (cupy.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (a, b))
    out = cupy.empty((*lead, a.shape[-2], b.shape[-1]), a.dtype)
    for index in np.ndindex(lead):
        cupy.matmul(a[index], b[index], out=out[index])
    return out


def rows_per_key_head(q: Any, k: Any, v: Any) -> tuple[Any, int | None]:
    """Fold query heads that share a key head into its rows; also the number of query heads.

    (..., Hq, m, d) becomes (..., Hkv, Hq / Hkv * m, d); None if there is nothing to fold.
    """
    if max(q.ndim, k.ndim, v.ndim) < 4 or q.ndim < 3:
        return q, None
    heads = q.shape[-3]
    kv_heads = max(x.shape[-3] if x.ndim > 2 else 1 for x in (k, v))
    if heads <= kv_heads:
        return q, None
    if kv_heads == 0 or heads % kv_heads:
        raise ValueError(
            f"standard_attention: q has {heads} heads and k and v have {kv_heads}; the number of "
            "query heads must be a multiple of the number of key heads"
        )
    m, d = q.shape[-2:]
    return q.reshape((*q.shape[:-3], kv_heads, heads // kv_heads * m, d)), heads


def unfolded(lead: tuple[int, ...], heads: int | None) -> tuple[int, ...]:
    """Return leading axes with the query heads that `rows_per_key_head` folded."""
    return lead if heads is None else (*lead[:-1], heads)


def cublas_problem() -> str | None:
    """Say why `cupy.matmul` can't work here and what to install; None if it can.

    Returns
    -------
    str or None
        Also for an installation without CuPy: then its import error.
    """
    try:
        cupy = import_cupy()
    except ImportError as error:
        return str(error)
    try:
        from cupy.cuda import cublas  # noqa: F401  (this opens the library)
    except (ImportError, AttributeError, RuntimeError) as error:
        major = cupy.cuda.runtime.runtimeGetVersion() // 1000
        package = "nvidia-cublas-cu12" if major == 12 else "nvidia-cublas"
        cause = str(error).split(":")[0]
        return (
            f"needs cuBLAS: pip install {package}\n"
            f"(cupy.matmul uses it; cupy_flash's kernels don't. CuPy said: {cause})"
        )
    return None


def cupy_with_cublas() -> Any:
    """Return CuPy; raise CublasMissing if it can't multiply matrices."""
    cupy = import_cupy()
    problem = cublas_problem()
    if problem is not None:
        raise CublasMissing(problem)
    return cupy
