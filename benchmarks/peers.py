"""Attention of this package and of others as candidates of one benchmark, on the same memory.

A candidate says why it can't do a case, makes a call of a case's arrays, and samples that call. The
ones that need PyTorch or JAX are in `peers_torch` and `peers_jax`, which are imported when they are
asked for. Nothing here is imported by the package.
"""

from __future__ import annotations

import abc
import argparse
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import cupy

from cupy_flash import attention, explain, timing
from cupy_flash.commands.bench_measure import normal
from cupy_flash.commands.machine import one_line
from cupy_flash.unfused import standard_attention

LAYOUTS = ("bhnd", "bnhd")


@dataclass(frozen=True)
class Case:
    """A problem with as many rows as keys, whose arrays are (batch, heads, n, d).

    Attributes
    ----------
    layout : {"bhnd", "bnhd"}
        The order in memory: (batch, heads, n, d) or (batch, n, heads, d).
    """

    dtype: str
    batch: int
    heads: int
    kv_heads: int
    n: int
    d: int
    causal: bool
    layout: str = "bhnd"

    @property
    def flops(self) -> float:
        """Those of the two products, half of them if causal, as the papers count."""
        return 4 * self.batch * self.heads * self.n**2 * self.d / (2 if self.causal else 1)

    def __str__(self) -> str:
        """Say it in a few words."""
        heads = f"{self.heads}" if self.heads == self.kv_heads else f"{self.heads}/{self.kv_heads}"
        mask = "causal" if self.causal else "full"
        return f"{self.dtype} batch={self.batch} heads={heads} n={self.n} d={self.d} {mask}"


@dataclass(frozen=True)
class Arrays:
    """q, k, v and out as CuPy arrays of shape (batch, heads, n, d), and options of `attention`."""

    q: Any
    k: Any
    v: Any
    out: Any
    options: Mapping[str, Any] = field(default_factory=dict)


def make_arrays(case: Case) -> Arrays:
    """Draw the arrays of a case; what zeros or constants take from the power would flatter all."""
    made = []
    for seed, heads in enumerate((case.heads, case.kv_heads, case.kv_heads, case.heads)):
        if case.layout == "bnhd":
            x = cupy.asarray(normal((case.batch, case.n, heads, case.d), case.dtype, seed))
            made.append(x.swapaxes(1, 2))
        else:
            made.append(cupy.asarray(normal((case.batch, heads, case.n, case.d), case.dtype, seed)))
    return Arrays(*made)


class Candidate(abc.ABC):
    """Something that computes attention."""

    def __init__(self, name: str) -> None:
        self.name = name

    def why_not(self, case: Case) -> str | None:
        """Say why it can't compute a case, None if it may."""
        return None

    def versions(self) -> dict[str, str]:
        """Return the versions of what it needs besides CuPy."""
        return {}

    def describe(self, case: Case, arrays: Arrays) -> dict[str, Any]:
        """Return what a result file says of it in this case."""
        return {}

    def family(self, case: Case, arrays: Arrays) -> str | None:
        """Return the kernel family by whose roundings its errors are judged."""
        return None

    @abc.abstractmethod
    def call(self, case: Case, arrays: Arrays) -> Callable[[], Any]:
        """Return what computes a case on the current stream and returns the result."""

    def once(self, call: Callable[[], Any]) -> Any:
        """Call and wait; the result, indexed by (batch, head, row, column)."""
        result = call()
        cupy.cuda.Device().synchronize()
        return result

    def to_host(self, x: Any) -> Any:
        """Return a part of a result as a NumPy array."""
        return cupy.asnumpy(x)

    def eager(self, call: Callable[[], Any], stream: Any, calls: int) -> timing.Sample:
        """Sample calls one after another."""
        return timing.called(call, stream, calls)

    def sample(self, call: Callable[[], Any], stream: Any, calls: int) -> timing.Sample:
        """Sample calls without their host's cost, where that is possible."""
        return self.eager(call, stream, calls)

    def free(self) -> None:
        """Give memory back that it keeps between cases."""
        cupy.get_default_memory_pool().free_all_blocks()


class Ours(Candidate):
    """The kernel that `attention` takes ("auto"), or a family of ours."""

    def __init__(self, kernel: str) -> None:
        super().__init__(kernel)
        self.options = {} if kernel == "auto" else {"kernel": kernel}

    def why_not(self, case: Case) -> str | None:
        shapes = [
            ((case.batch, heads, case.n, case.d), case.dtype)
            for heads in (case.heads, case.kv_heads, case.kv_heads)
        ]
        try:
            self._explain(*shapes, case, {})
        except ValueError as error:
            return str(error)
        return None

    def describe(self, case: Case, arrays: Arrays) -> dict[str, Any]:
        explained = self._explain(arrays.q, arrays.k, arrays.v, case, arrays.options)
        tile = explained.variant.tile
        return {"kernel": explained.kernel, "tile": f"{tile.block_m} x {tile.block_n}"}

    def family(self, case: Case, arrays: Arrays) -> str | None:
        return self._explain(arrays.q, arrays.k, arrays.v, case, arrays.options).kernel

    def _explain(self, q: Any, k: Any, v: Any, case: Case, options: Mapping[str, Any]) -> Any:
        return explain(q, k, v, causal=case.causal, **self.options, **options)

    def call(self, case: Case, arrays: Arrays) -> Callable[[], Any]:
        x, options = arrays, {"causal": case.causal, **self.options, **arrays.options}
        return lambda: attention(x.q, x.k, x.v, out=x.out, **options)

    def sample(self, call: Callable[[], Any], stream: Any, calls: int) -> timing.Sample:
        return timing.replayed(call, stream, calls)


class Unfused(Candidate):
    """`standard_attention`: matmul, our softmax, matmul. CuPy can't capture cuBLAS."""

    def __init__(self) -> None:
        super().__init__("unfused")

    def call(self, case: Case, arrays: Arrays) -> Callable[[], Any]:
        # Copies made here and not in every call, or it would be slower than it must be.
        q, k, v = (cupy.ascontiguousarray(x) for x in (arrays.q, arrays.k, arrays.v))
        return lambda: standard_attention(q, k, v, causal=case.causal)


Known = Mapping[str, tuple[str, str]]
Groups = Mapping[str, tuple[str, ...]]
# The words of --peers: the module and the function there that makes each one.
PEERS: Known = {
    "torch-cudnn": ("peers_torch", "cudnn"),
    "torch-fa2": ("peers_torch", "fa2"),
    "torch-efficient": ("peers_torch", "efficient"),
    "torch-math": ("peers_torch", "math"),
    "fa3": ("peers_torch", "fa3"),
    "fa4": ("peers_torch", "fa4"),
    "jax-fa3": ("peers_jax", "fa3"),
    "jax-cudnn": ("peers_jax", "cudnn"),
}
GROUPS: Groups = {
    "torch": ("torch-cudnn", "torch-fa2", "torch-efficient", "torch-math"),
    "jax": ("jax-fa3", "jax-cudnn"),
}


def peer_words(text: str, known: Known = PEERS, groups: Groups = GROUPS) -> list[str]:
    """Split what --peers gets, with groups replaced by their members; for argparse."""
    found: dict[str, None] = {}
    for word in filter(None, text.split(",")):
        for member in groups.get(word, (word,)):
            if member not in known:
                words = ", ".join((*groups, *known))
                raise argparse.ArgumentTypeError(f"{word!r} is no peer; known are {words}")
            found[member] = None
    return list(found)


def load(word: str, known: Known = PEERS) -> Candidate | str:
    """Return a peer, or why it can't be used here."""
    module, name = known[word]
    try:
        peer: Candidate = getattr(importlib.import_module(module), name)()
        peer.versions()
    # A library that is half installed or built for another machine raises anything.
    except Exception as error:
        return one_line(error)
    return peer


def chosen(words: list[str], known: Known = PEERS) -> tuple[list[Candidate], dict[str, Any]]:
    """Load peers; those that can be used, and for a result file the versions or reasons of all."""
    peers, used = [], {}
    for word in words:
        peer = load(word, known)
        if isinstance(peer, str):
            print(f"{word} can't be used: {peer}", flush=True)
            used[word] = {"not_usable": peer}
        else:
            peers.append(peer)
            used[word] = peer.versions()
    return peers, used
