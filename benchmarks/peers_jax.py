"""Peers that take JAX arrays. JAX has streams of its own: the host's clock times its calls."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
from collections.abc import Callable
from typing import Any

# Before JAX is imported: it would take most of the memory that CuPy and PyTorch need.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.dlpack
import jax.numpy
import numpy as np

from cupy_flash import timing
from peers import Arrays, Candidate, Case

SIXTEEN_BITS = ("float16", "bfloat16")


class JaxCandidate(Candidate):
    """A jitted function of arrays of (batch, n, heads, d)."""

    def __init__(self, name: str, function: Callable[..., Any], *distributions: str) -> None:
        super().__init__(name)
        self.function, self.distributions = function, distributions

    def why_not(self, case: Case) -> str | None:
        if case.dtype not in SIXTEEN_BITS:
            return f"takes {', '.join(SIXTEEN_BITS)}"
        if case.layout != "bnhd":
            return "takes (batch, n, heads, d) in memory: --layout bnhd"
        return None

    def versions(self) -> dict[str, str]:
        names = ("jax", *self.distributions)
        return {name: importlib.metadata.version(name) for name in names}

    def describe(self, case: Case, arrays: Arrays) -> dict[str, Any]:
        return {"timed_by": "the host's clock"}

    def family(self, case: Case, arrays: Arrays) -> str | None:
        # They round P to 16 bits as sm80 does, and its bound allows for that.
        return "sm80"

    def call(self, case: Case, arrays: Arrays) -> Callable[[], Any]:
        q, k, v = (jax.dlpack.from_dlpack(x.swapaxes(1, 2)) for x in (arrays.q, arrays.k, arrays.v))
        compiled = jax.jit(lambda q, k, v: self.function(q, k, v, is_causal=case.causal))
        return lambda: compiled(q, k, v)

    def once(self, call: Callable[[], Any]) -> Any:
        return call().block_until_ready().swapaxes(1, 2)

    def to_host(self, x: Any) -> Any:
        return np.asarray(x.astype(jax.numpy.float32))

    def eager(self, call: Callable[[], Any], stream: Any, calls: int) -> timing.Sample:
        return timing.waited(call, calls, lambda result: result.block_until_ready())


def fa3() -> Candidate:
    """Return FlashAttention-3 as dew-flash-attn-cu13 builds it."""
    function = importlib.import_module("dew_flash_attn").flash_mha
    return JaxCandidate("JAX FA3", function, "dew-flash-attn-cu13")


def cudnn() -> Candidate:
    def function(q: Any, k: Any, v: Any, is_causal: bool) -> Any:
        return jax.nn.dot_product_attention(q, k, v, is_causal=is_causal, implementation="cudnn")

    return JaxCandidate("JAX cuDNN", function)
