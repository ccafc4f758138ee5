"""`attention_vjp`: a forward call that remembers what its gradients need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cupy_flash.api import attention
from cupy_flash.backward.api import attention_backward
from cupy_flash.errors import named


def attention_vjp(
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
    kernel: str | None = None,
) -> tuple[Any, Callable[..., Any]]:
    """Attention, and the function that takes gradients of its result to those of its arguments.

    Parameters
    ----------
    q, k, v : array
        As of `attention`.
    scale, causal, offset, window, mask, bias, softcap, alibi_slopes, sinks, q_lengths, k_lengths
        As of `attention`.
    precision, kernel
        As of `attention`; for both passes.

    Returns
    -------
    out : array, (..., Hq, m, p)
        As `attention` returns it.
    pullback : callable
        ``pullback(do, dlse=None, wrt=("q", "k", "v"))`` is `attention_backward` for this call, the
        vector-Jacobian product of ``do``. It may be called any number of times. It keeps the
        arguments, out and lse, not copies of them: none may be written before its last call.

    Raises
    ------
    TypeError, ValueError, ImportError, CompileError
        As `attention`, and pullback as `attention_backward`.

    Examples
    --------
    >>> import numpy as np, cupy_flash as cf
    >>> q, k, v = np.ones((1, 1)), np.ones((2, 1)), np.array([[0.0], [1.0]])
    >>> out, pullback = cf.attention_vjp(q, k, v)
    >>> out
    array([[0.5]])
    >>> pullback(np.ones_like(out)).k
    array([[-0.25],
           [ 0.25]])
    """
    options: dict[str, Any] = {
        "scale": scale,
        "causal": causal,
        "offset": offset,
        "window": window,
        "mask": mask,
        "bias": bias,
        "softcap": softcap,
        "alibi_slopes": alibi_slopes,
        "sinks": sinks,
        "q_lengths": q_lengths,
        "k_lengths": k_lengths,
        "precision": precision,
        "kernel": kernel,
    }
    with named("attention_vjp"):
        out, lse = attention(q, k, v, return_lse=True, **options)

    def pullback(do: Any, dlse: Any = None, wrt: tuple[str, ...] = ("q", "k", "v")) -> Any:
        with named("pullback"):
            return attention_backward(do, q, k, v, out, lse, dlse=dlse, wrt=wrt, **options)

    return out, pullback
