"""Gradients of attention as candidates of one benchmark: ours, unfused CuPy, and PyTorch's.

A case has a part: the forward call, as a training step makes it, the backward call, or both.
PyTorch's candidates are in `peers_torch_backward`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import cupy
import numpy as np

from cupy_flash import attention, attention_backward, standard_attention, workspace_size
from cupy_flash.accuracy import accumulation
from cupy_flash.arrays import to_dtype
from cupy_flash.commands.bench_measure import normal
from cupy_flash.unfused_backward import standard_attention_backward
from peers import Arrays, Candidate, Case, Known, Ours

# Parts of a training step, and their FLOPs in those of the forward call, as the papers count.
PARTS = {"forward": 1.0, "backward": 2.5, "both": 3.5}
WIDE = ("float32", "float64")
PEERS: Known = {
    "torch-fa2": ("peers_torch_backward", "fa2"),
    "torch-cudnn": ("peers_torch_backward", "cudnn"),
    "torch-efficient": ("peers_torch_backward", "efficient"),
    "torch-math": ("peers_torch_backward", "math"),
    "fa4": ("peers_torch_backward", "fa4"),
}


@dataclass(frozen=True)
class BackwardCase(Case):
    """A part of a training step on a case of `peers`."""

    part: str = "backward"

    @property
    def flops(self) -> float:
        return PARTS[self.part] * super().flops

    def __str__(self) -> str:
        """Say it in a few words."""
        return f"{super().__str__()} {self.part}"


@dataclass(frozen=True, kw_only=True)
class BackwardArrays(Arrays):
    """What a training step reads and writes.

    Attributes
    ----------
    do, o, lse : array
        Read by the backward call alone: o and lse are right. dlse, if given, is None or an array.
    out, out_lse : array
        Written by the forward call, and read by the backward call after it.
    wrt : tuple of str
        Of which arguments there are gradients.
    gradients : tuple of array
        Where they go.
    """

    do: Any
    o: Any
    lse: Any
    out_lse: Any
    gradients: tuple[Any, ...]
    wrt: tuple[str, ...] = ("q", "k", "v")
    dlse: Any = None


class Drawn:
    """Normally distributed arrays on the GPU; those of one size and dtype share their memory."""

    def __init__(self) -> None:
        self._flat: dict[tuple[str, int, int], Any] = {}

    def array(self, case: Case, heads: int, seed: int) -> Any:
        """Return an array (batch, heads, n, d) in the case's layout. Nobody may write there."""
        inner = (heads, case.n) if case.layout == "bhnd" else (case.n, heads)
        shape = (case.batch, *inner, case.d)
        key = case.dtype, int(np.prod(shape)), seed
        if key not in self._flat:
            self._flat[key] = cupy.asarray(normal((key[1],), case.dtype, seed))
        x = self._flat[key].reshape(shape)
        return x if case.layout == "bhnd" else x.swapaxes(1, 2)


def make_backward_arrays(
    case: Case,
    drawn: Drawn,
    options: Mapping[str, Any] | None = None,
    wrt: tuple[str, ...] = ("q", "k", "v"),
    *,
    with_dlse: bool = False,
    kernel: str | None = None,
) -> BackwardArrays:
    """Draw q, k, v and do, and compute o and lse, with options of `attention`."""
    options = dict(options or {})
    q, k, v, do = (
        drawn.array(case, heads, seed)
        for seed, heads in enumerate((case.heads, case.kv_heads, case.kv_heads, case.heads))
    )
    o, out = (_like(do, case) for _ in range(2))
    accumulate = accumulation(case.dtype)
    shape = (case.batch, case.heads, case.n)
    lse, out_lse = (cupy.empty(shape, accumulate) for _ in range(2))
    attention(q, k, v, out=(o, lse), return_lse=True, causal=case.causal, kernel=kernel, **options)
    sources = {"q": q, "k": k, "v": v} | options
    gradients = tuple(
        _like(sources[name], case) if name in "qkv" else cupy.empty_like(sources[name])
        for name in wrt
    )
    cupy.cuda.Device().synchronize()
    return BackwardArrays(
        q,
        k,
        v,
        out,
        options,
        do=do,
        o=o,
        lse=lse,
        out_lse=out_lse,
        gradients=gradients,
        wrt=wrt,
        dlse=cupy.asarray(normal(shape, accumulate, 5)) if with_dlse else None,
    )


def _like(x: Any, case: Case) -> Any:
    """Return a new array in the case's layout: x may be a view of shared memory."""
    batch, heads, n, d = x.shape
    dtype = to_dtype(case.dtype)
    if case.layout == "bhnd":
        return cupy.empty(x.shape, dtype)
    return cupy.empty((batch, n, heads, d), dtype).swapaxes(1, 2)


def part_of(case: Case) -> str:
    """Return the part that a case is of; cases of other classes are of the backward call."""
    return case.part if isinstance(case, BackwardCase) else "backward"


class OursBackward(Ours):
    """The deterministic gradients that `attention_backward` computes by default."""

    def describe(self, case: Case, arrays: Arrays) -> dict[str, Any]:
        return {"kernel": self.family(case, arrays)}

    def call(self, case: Case, arrays: Arrays) -> Callable[[], Any]:
        assert isinstance(arrays, BackwardArrays)
        x, part = arrays, part_of(case)
        options = {"causal": case.causal, **self.options, **arrays.options}

        def forward() -> Any:
            results = (x.out, x.out_lse)
            return attention(x.q, x.k, x.v, out=results, return_lse=True, **options)[0]

        if part == "forward":
            return forward
        o, lse = (x.o, x.lse) if part == "backward" else (x.out, x.out_lse)
        size = workspace_size(x.q, x.k, x.v, wrt=x.wrt, **options)
        how = {"wrt": x.wrt, "out": x.gradients, "workspace": cupy.empty(size, np.uint8)}

        def backward() -> Any:
            return attention_backward(x.do, x.q, x.k, x.v, o, lse, dlse=x.dlse, **how, **options)

        def both() -> Any:
            forward()
            return backward()

        return backward if part == "backward" else both


class StandardBackward(Candidate):
    """`standard_attention` and its gradients. CuPy can't capture cuBLAS."""

    def __init__(self) -> None:
        super().__init__("unfused")

    def why_not(self, case: Case) -> str | None:
        return None if case.dtype in WIDE else f"measured in {' and '.join(WIDE)}"

    def call(self, case: Case, arrays: Arrays) -> Callable[[], Any]:
        assert isinstance(arrays, BackwardArrays)
        # Copies made here and not in every call, or it would be slower than it must be.
        do, q, k, v = map(cupy.ascontiguousarray, (arrays.do, arrays.q, arrays.k, arrays.v))
        part = part_of(case)

        def forward() -> Any:
            return standard_attention(q, k, v, causal=case.causal)

        def backward() -> Any:
            return standard_attention_backward(do, q, k, v, causal=case.causal)

        def both() -> Any:
            forward()
            return backward()

        return {"forward": forward, "backward": backward, "both": both}[part]
