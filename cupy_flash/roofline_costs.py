"""FLOPs and bytes to device memory of attention and of what it is made of, in closed form.

One FLOP is one addition, multiplication, division, comparison or exponential of one element.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from numpy.typing import DTypeLike

from cupy_flash.roofline_sizes import ITEMSIZE, check_flag, check_size, check_sizes, dtype_name

Window = tuple[int | None, int | None]

# Per score of a softmax whose row stays on the chip: maximum, subtract, exp, add, divide.
_SOFTMAX = 5
# Pass 1: maximum. Pass 2: subtract, exp, add. Pass 3: subtract, exp (again), divide.
_THREE_PASS = 7
# The first two passes become one, whose running sum is corrected at every score.
_ONLINE_CORRECTION = 3  # old maximum minus new, exp, multiply the sum
# FlashAttention leaves the division to the end: maximum, subtract, exp, add.
_FLASH_SOFTMAX = 4
# One merge of row statistics, Dao et al. 2022, algorithm 1, line 11: new maximum (1); two factors,
# a subtraction and an exponential each (4); l = a l + b l' (3).
_MERGE_TWO_SIDED = 8
# The same where exponentials are taken against the new maximum already, as in FlashAttention-2:
# new maximum (1), one factor (2), l = a l + l' (2).
_MERGE_ONE_SIDED = 5


@dataclass(frozen=True)
class Cost:
    """FLOPs and traffic of an operation.

    Attributes
    ----------
    products : int
        FLOPs of the matrix products, two per multiply-add.
    softmax : int
        FLOPs of maxima, exponentials, sums and divisions.
    rescaling : int
        FLOPs spent on correcting what was accumulated under an older maximum.
    bytes : int
        Bytes read from and written to device memory.
    """

    products: int
    softmax: int
    rescaling: int
    bytes: int

    @property
    def flops(self) -> int:
        """All FLOPs."""
        return self.products + self.softmax + self.rescaling

    @property
    def intensity(self) -> float:
        """FLOP per byte; 0 if there are no FLOPs, inf if there are some and no bytes."""
        if self.bytes:
            return self.flops / self.bytes
        return math.inf if self.flops else 0.0


def visible_pairs(
    m: int,
    n: int,
    *,
    causal: bool = True,
    offset: int | None = None,
    window: Window | None = None,
) -> int:
    """Count the (row, key) pairs that causality and a window leave.

    Parameters
    ----------
    m, n : int
        Rows and keys.
    causal : bool, default True
        Row i sees key j only if j <= i + offset.
    offset : int, optional
        Row i stands at key i + offset; default n - m (the last row sees the last key).
    window : (int or None, int or None), optional
        ``(left, right)``: only keys from i + offset - left to i + offset + right; None: no bound.

    Returns
    -------
    int
        The sum over i of the keys between the bounds, each clipped to [0, n], in closed form.
    """
    s = check_sizes(m, n, 0, None, "float32", 1, 1, None, causal, offset, window)
    return s.pairs


def standard_attention(
    m: int,
    n: int,
    d: int,
    p: int | None = None,
    *,
    dtype: DTypeLike = "float32",
    batch: int = 1,
    heads: int = 1,
    kv_heads: int | None = None,
    causal: bool = False,
    offset: int | None = None,
    window: Window | None = None,
) -> Cost:
    """Attention as two products with S and P in device memory between them.

    S = Q K^T is written; the softmax reads it and writes P; the second product reads P. So the
    traffic is Q, K, V, O and four times the m x n matrix. The softmax costs 5 per score: maximum,
    subtract, exp, add, divide; the scale is the product's alpha and free. For m, n and d = p:
    4 m n d + 5 m n FLOPs and itemsize (2 m d + 2 n d + 4 m n) bytes.

    Parameters
    ----------
    m, n : int
        Query rows and keys of one head.
    d, p : int
        Head dim of Q and K, and of V; p defaults to d.
    dtype : dtype or str, default "float32"
        float16, bfloat16, float32 or float64; of the inputs, S, P and the output.
    batch, heads, kv_heads : int
        Batch entries, query heads and key heads; kv_heads defaults to heads and must divide it.
    causal, offset, window
        As in `visible_pairs`. FLOPs count visible pairs only; the traffic of S and P stays whole,
        because the matrices are stored whole.

    Returns
    -------
    Cost

    Raises
    ------
    TypeError, ValueError
        The message names the argument.
    """
    s = check_sizes(m, n, d, p, dtype, batch, heads, kv_heads, causal, offset, window)
    elements = s.query_heads * (s.m * (s.d + s.p) + 4 * s.m * s.n) + s.kv_heads * s.n * (s.d + s.p)
    pairs = s.query_heads * s.pairs
    return Cost(2 * pairs * (s.d + s.p), _SOFTMAX * pairs, 0, s.itemsize * elements)


def flash_attention(
    m: int,
    n: int,
    d: int,
    p: int | None = None,
    *,
    dtype: DTypeLike = "float32",
    batch: int = 1,
    heads: int = 1,
    kv_heads: int | None = None,
    causal: bool = False,
    offset: int | None = None,
    window: Window | None = None,
    block_m: int = 128,
    block_n: int | None = None,
    reuse_kv: bool = True,
    return_lse: bool = False,
) -> Cost:
    """FlashAttention's forward pass: S and P never leave the chip.

    There are two conventions for the FLOPs beside the products:

    - ``block_n=None``, the default, doesn't depend on tiles and counts 12 m n: 4 per score for
      the softmax (maximum, subtract, exp, add: line 10 of algorithm 1 of Dao et al. 2022) and 8
      for rescaling (line 11 charged to every score, as if tiles were one key wide: new maximum 1,
      two factors 4, merged sum 3). That is the most that the row statistics can cost; rescaling O
      is left out. With d = p and reuse: 4 m n d + 12 m n FLOPs and itemsize (2 m d + 2 n d) bytes.
    - ``block_n=b`` counts what a kernel with tiles of b keys does (FlashAttention-2's form): the
      same 4 per visible score; for each row and tile of its block 5 + p (new maximum 1, factor 2,
      merged sum 2, row of O p); and for each row p divisions at the end.

    Parameters
    ----------
    m, n, d, p, dtype, batch, heads, kv_heads, causal, offset, window
        As in `standard_attention`.
    block_m : int, default 128
        Rows of a row block.
    block_n : int, optional
        Keys of a tile. For the traffic, None means that single keys can be left out.
    reuse_kv : bool, default True
        True: L2 serves every repeated read, so K and V come from memory once per key head. False:
        once per row block and query head. Tiles that no row of the block sees aren't read.
    return_lse : bool, default False
        Also write the log-sum-exp, float32 (float64 for float64). Its m logarithms are left out.

    Returns
    -------
    Cost

    Raises
    ------
    TypeError, ValueError
        The message names the argument.

    Notes
    -----
    Takes m / block_m steps if `reuse_kv` is False or `block_n` is given, else a constant time.
    """
    s = check_sizes(m, n, d, p, dtype, batch, heads, kv_heads, causal, offset, window)
    block_m = check_size("block_m", block_m, least=1)
    width = 1 if block_n is None else check_size("block_n", block_n, least=1)
    reuse_kv = check_flag("reuse_kv", reuse_kv)
    lse_bytes = max(4, s.itemsize) if check_flag("return_lse", return_lse) else 0

    keys_read = row_tiles = rows_with_tiles = 0
    if not reuse_kv or block_n is not None:
        for first in range(0, s.m, block_m):
            rows = min(block_m, s.m - first)
            begin, end = s.tiles(first, first + rows - 1, width)
            keys_read += min(s.n, end * width) - begin * width
            row_tiles += rows * (end - begin)
            rows_with_tiles += rows if end > begin else 0
    if reuse_kv:
        # Whatever any row sees; the ranges of successive rows touch.
        begin, end = s.tiles(0, s.m - 1, width) if s.m else (0, 0)
        kv_elements = s.kv_heads * (min(s.n, end * width) - begin * width) * (s.d + s.p)
    else:
        kv_elements = s.query_heads * keys_read * (s.d + s.p)

    if block_n is None:
        rescaling = _MERGE_TWO_SIDED * s.pairs
    else:
        rescaling = row_tiles * (_MERGE_ONE_SIDED + s.p) + rows_with_tiles * s.p
    return Cost(
        products=2 * s.query_heads * s.pairs * (s.d + s.p),
        softmax=_FLASH_SOFTMAX * s.query_heads * s.pairs,
        rescaling=s.query_heads * rescaling,
        bytes=s.itemsize * (s.query_heads * s.m * (s.d + s.p) + kv_elements)
        + lse_bytes * s.query_heads * s.m,
    )


def softmax_three_pass(rows: int, columns: int, *, dtype: DTypeLike = "float32") -> Cost:
    """Softmax of every row in three passes over memory: maximum, sum, result.

    Three reads and a write of each element. 7 FLOPs: maximum; subtract, exp, add; subtract, exp,
    divide (the exponential is computed again rather than stored).

    Parameters
    ----------
    rows, columns : int
    dtype : dtype or str, default "float32"

    Returns
    -------
    Cost
    """
    size = check_size("rows", rows) * check_size("columns", columns)
    return Cost(0, _THREE_PASS * size, 0, 4 * size * ITEMSIZE[dtype_name(dtype)])


def softmax_online(rows: int, columns: int, *, dtype: DTypeLike = "float32") -> Cost:
    """Softmax of every row in two passes: maximum and sum together, then the result.

    Two reads and a write of each element, three quarters of the three-pass traffic. The running
    sum is corrected at every element (subtract, exp, multiply: 3 FLOPs of rescaling) beside the
    7 of `softmax_three_pass`. Milakov and Gimelshein 2018, algorithm 3.

    Parameters
    ----------
    rows, columns : int
    dtype : dtype or str, default "float32"

    Returns
    -------
    Cost
    """
    size = check_size("rows", rows) * check_size("columns", columns)
    traffic = 3 * size * ITEMSIZE[dtype_name(dtype)]
    return Cost(0, _THREE_PASS * size, _ONLINE_CORRECTION * size, traffic)


def matrix_product(m: int, n: int, k: int, *, batch: int = 1, dtype: DTypeLike = "float32") -> Cost:
    """Product of (m, k) and (k, n) matrices, each read once, the result written once.

    Parameters
    ----------
    m, n, k : int
    batch : int, default 1
        Independent products.
    dtype : dtype or str, default "float32"

    Returns
    -------
    Cost
    """
    m, n, k = check_size("m", m), check_size("n", n), check_size("k", k)
    batch = check_size("batch", batch)
    traffic = batch * (m * k + k * n + m * n) * ITEMSIZE[dtype_name(dtype)]
    return Cost(2 * batch * m * n * k, 0, 0, traffic)
