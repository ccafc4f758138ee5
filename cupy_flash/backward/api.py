"""The public functions of the backward pass: docstrings, and the straight line of a call."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import numpy as np

from cupy_flash.arrays import describe, planned, to_dtype
from cupy_flash.backward import blocked
from cupy_flash.backward.problem import make_backward_problem
from cupy_flash.errors import named
from cupy_flash.explanation import stand_ins
from cupy_flash.gradients import gradients_type
from cupy_flash.options import check_options
from cupy_flash.plan import recall
from cupy_flash.problem import SMALL_ARRAYS, make_problem


def attention_backward(
    do: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    /,
    *,
    dlse: Any = None,
    wrt: tuple[str, ...] = ("q", "k", "v"),
    out: tuple[Any, ...] | None = None,
    workspace: Any = None,
    deterministic: bool = True,
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
) -> Any:
    """Gradients of attention, given those of its results, in O(n) memory.

    With ``o, lse = attention(q, k, v, return_lse=True, ...)`` and any number L that follows from o
    and lse, ``do`` and ``dlse`` are the derivatives of L by their elements, and the result those by
    the elements of the arrays in `wrt`. The weights are computed again from lse [1]_.

    Parameters
    ----------
    do : array, (..., Hq, m, p)
        Gradient with respect to o: o's shape and dtype, any strides, those of
        `numpy.broadcast_to` too. What it holds in rows that see no key never matters.
    q, k, v : array
        As given to `attention`.
    o, lse : array, (..., Hq, m, p) and (..., Hq, m)
        What `attention` returned for them with the same options.
    dlse : array, (..., Hq, m), optional
        Gradient with respect to lse: its shape and dtype. What it holds where lse is -inf never
        matters. Default 0.
    wrt : tuple of str, optional
        Of which arguments to return gradients, each once: out of "q", "k", "v", "bias", "sinks",
        "alibi_slopes" and "scale". Default ``("q", "k", "v")``.
    out : tuple, optional
        Where to write: for each name of `wrt`, in its order, an array of that argument's shape and
        dtype or None. Any strides; no element shared with an input or with one another.
    workspace : uint8 array, optional
        Scratch memory for CuPy arrays: contiguous, with one axis of at least `workspace_size`
        bytes, at an address that is a multiple of 16. Default: allocated by the call.
    deterministic : bool, optional
        True: the same bits on every run. False permits kernels whose results differ from run to
        run; no kernel of this version does. Default True.
    scale, causal, offset, window, mask, bias, softcap, alibi_slopes, sinks, q_lengths, k_lengths
        As given to `attention`. A bias of integers has no gradient.
    precision, kernel
        As of `attention`, for this pass.

    Returns
    -------
    named tuple of arrays
        A field for each name of `wrt`, in its order, with the shape and dtype of that argument; a
        new one in its memory order. Over axes that broadcast, and over the heads of a group,
        gradients are summed. "scale" has shape () and lse's dtype, also where the scale is the
        default one. 0 for a key that no row sees and for a row of q that sees no key.

    Raises
    ------
    TypeError, ValueError
        For arguments that can't be used, before anything is launched or written.
    ImportError
        For another library's GPU array when CuPy isn't installed.
    NotImplementedError
        On a GPU, for a gradient that is the sum over more than four batch axes whose strides don't
        merge.
    CompileError
        If NVRTC refuses a kernel.

    See Also
    --------
    attention_vjp : the forward call and its gradients together.

    Notes
    -----
    The formulas are those of `cupy_flash.reference_backward`. Sums run in float32 (float64 for
    float64), and each gradient is rounded once.

    o and lse must be those of the very call: nothing can check it. A large lse tells the weights
    only to its own rounding, which is 0.06 for one of 1e6 in float32. ``do @ v.T`` must stay
    within the type of the sums.

    References
    ----------
    .. [1] Dao et al., "FlashAttention", arXiv:2205.14135, appendix B

    Examples
    --------
    Two keys of equal scores, values 0 and 1: out is 0.5, and the weight that moves is 0.25.

    >>> import numpy as np, cupy_flash as cf
    >>> q, k, v = np.ones((1, 1)), np.ones((2, 1)), np.array([[0.0], [1.0]])
    >>> out, lse = cf.attention(q, k, v, return_lse=True)
    >>> grads = cf.attention_backward(np.ones((1, 1)), q, k, v, out, lse, wrt=("v", "k"))
    >>> grads._fields
    ('v', 'k')
    >>> grads.v
    array([[0.5],
           [0.5]])
    >>> grads.k
    array([[-0.25],
           [ 0.25]])
    """
    outs = out if type(out) is tuple else (out,)
    arguments = (do, q, k, v, o, lse, dlse, mask, bias, alibi_slopes, sinks, q_lengths, k_lengths)
    values: tuple[Any, ...]
    values = ("backward", scale, causal, offset, window, softcap, precision, kernel, deterministic)
    if type(window) is tuple:
        values += window
    plan, key, pointers = recall((*arguments, *outs, workspace), (*values, wrt))
    if plan is not None:
        outs = out or (None,) * len(wrt)
        return gradients_type(wrt)(*_launch().run(plan, pointers, outs, workspace))
    given = {"do": do, "q": q, "k": k, "v": v, "o": o, "lse": lse}
    if dlse is not None:
        given["dlse"] = dlse
    small = dict(
        zip(SMALL_ARRAYS, (mask, bias, alibi_slopes, sinks, q_lengths, k_lengths), strict=True)
    )
    with named("attention_backward"):
        options = check_options(
            scale=scale,
            causal=causal,
            offset=offset,
            window=window,
            softcap=softcap,
            precision=precision,
            kernel=kernel,
            **small,
        )
        problem = make_backward_problem(
            {name: describe(name, x) for name, x in given.items()},
            options,
            wrt=wrt,
            out=out,
            workspace=None if workspace is None else describe("workspace", workspace),
            deterministic=deterministic,
        )
        arrays = given | {name: x for name, x in small.items() if x is not None}
        outs = out or (None,) * len(wrt)
        if problem.forward.module == "cupy":
            found = _launch().backward(problem, arrays, outs, workspace, key)
        else:
            found = blocked.backward(problem, arrays, outs)
    return gradients_type(wrt)(*found)


def workspace_size(
    q: Any, k: Any, v: Any, /, *, wrt: tuple[str, ...] = ("q", "k", "v"), **options: Any
) -> int:
    """Bytes of scratch memory that `attention_backward` needs for a call.

    Parameters
    ----------
    q, k, v : array or (shape, dtype)
        The arrays of the call, or pairs such as ``((2, 8, 1024, 64), "float32")`` that stand for
        contiguous CuPy arrays.
    wrt : tuple of str, optional
        As of `attention_backward`.
    **options
        The options that `attention_backward` has in common with `attention`; such pairs stand for
        arrays here too.

    Returns
    -------
    int
        0 for NumPy arrays.

    Raises
    ------
    TypeError, ValueError
        As `attention_backward` with the same arguments.

    Examples
    --------
    >>> import numpy as np, cupy_flash as cf
    >>> x = np.ones((3, 4))
    >>> cf.workspace_size(x, x, x, causal=True)
    0
    """
    with named("workspace_size"):
        matrices, checked = stand_ins(q, k, v, options, "workspace_size")
        forward = make_problem(*matrices, checked)
        result = planned(forward.out_shape, to_dtype(forward.dtype))
        lse = planned(forward.lse_shape, np.dtype(forward.accumulate))
        infos = dict(zip(("q", "k", "v"), matrices, strict=True))
        for name, info in (("do", result), ("o", result), ("lse", lse)):
            infos[name] = replace(info, module=forward.module, device=forward.device)
        problem = make_backward_problem(infos, checked, wrt=wrt)
        if forward.module == "numpy":
            return 0
        return int(_launch().workspace_bytes(problem))


def _launch() -> Any:
    # NumPy arrays never need it, nor what compiles kernels.
    return importlib.import_module("cupy_flash.backward.launch")
