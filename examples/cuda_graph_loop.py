"""A loop of calls in a CUDA graph: queries that descend to where attention says what they should.

Descent by gradients finds queries that make attention return given targets: each step computes o =
attention(q, k, v), the gradient dq of |o - target|^2 / 2, and q - rate dq. On a GPU several steps
are captured once and then replayed as one graph, which is one launch. What a captured call needs is
memory that lasts: `out=` of both calls, and for gradients `workspace=`, of `workspace_size` bytes;
and it must have been made once before, so that its kernels are loaded. On the NumPy path the same
steps just run.

Where PyTorch with a GPU is installed, keys come from it: `cupy.from_dlpack` takes a tensor as it
lies, without a copy.

    python examples/cuda_graph_loop.py
    python examples/cuda_graph_loop.py --cpu
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np

import cupy_flash as cf
from setting import Setting, setting, verdict

Array = np.ndarray[Any, Any]
RATE = 2.0
STEPS = 5  # in a graph
REPLAYS = 8


class Descent:
    """The arrays of the loop; a step allocates none."""

    def __init__(self, s: Setting, q: Array, k: Any, v: Array, target: Array) -> None:
        self.xp, self.k = s.xp, k
        # Copies, since steps write into q.
        self.q, self.v, self.target = (s.array(x).copy() for x in (q, v, target))
        self.results = s.xp.empty_like(self.target), s.xp.empty(q.shape[:-1])
        self.do, self.dq = s.xp.empty_like(self.target), s.xp.empty_like(self.q)
        size = cf.workspace_size(self.q, self.k, self.v, wrt=("q",))
        self.workspace = s.xp.empty(size, np.uint8) if size else None

    def steps(self) -> None:
        xp, inputs = self.xp, (self.q, self.k, self.v)
        memory = {"out": (self.dq,), "workspace": self.workspace}
        for _ in range(STEPS):
            o, lse = cf.attention(*inputs, out=self.results, return_lse=True)
            xp.subtract(o, self.target, out=self.do)
            (dq,) = cf.attention_backward(self.do, *inputs, o, lse, wrt=("q",), **memory)
            xp.multiply(dq, RATE, out=self.dq)
            xp.subtract(self.q, self.dq, out=self.q)


def run_in_graph(descent: Descent) -> None:
    import cupy

    start = descent.q.copy()
    # A stream of ours doesn't wait for the default one, where the arrays were made.
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        descent.steps()  # compiles and loads what a capture can't
        stream.begin_capture()
        descent.steps()
        graph = stream.end_capture()
        # Capturing computed nothing, the calls before it did.
        cupy.copyto(descent.q, start)
        for _ in range(REPLAYS):
            graph.launch(stream)
        stream.synchronize()


def keys_of_torch(s: Setting, k: Array) -> tuple[Any, int]:
    """Return the keys, in a tensor of PyTorch's where it can, and how many bytes they moved."""
    if s.xp is np or importlib.util.find_spec("torch") is None:
        return s.array(k), 0
    import torch

    if not torch.cuda.is_available():
        return s.array(k), 0
    tensor = torch.from_numpy(k).cuda()
    torch.cuda.synchronize()
    keys = s.xp.from_dlpack(tensor)
    print("  the keys are a tensor of PyTorch's")
    return keys, abs(keys.data.ptr - tensor.data_ptr())


def directly(q: Array, k: Array, v: Array, target: Array) -> Array:
    """Return the queries after all steps, by formulas in float64."""
    scale = 1 / np.sqrt(q.shape[-1])
    for _ in range(STEPS * REPLAYS):
        scores = scale * q @ k.swapaxes(-1, -2)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        of_weights = (weights @ v - target) @ v.swapaxes(-1, -2)
        mean = (weights * of_weights).sum(axis=-1, keepdims=True)
        q = q - RATE * scale * (weights * (of_weights - mean)) @ k
    return q


def main(argv: Sequence[str] | None = None) -> int:
    s = setting(__doc__, argv)
    shape = (2, 48, 16) if s.small else (8, 512, 64)
    q, k, v, target, nudge = np.random.default_rng(0).standard_normal((5, *shape))
    target *= 0.3  # means of values are smaller than values
    print(f"{shape[0]} heads, {shape[1]} rows and keys, {REPLAYS} times {STEPS} steps")
    keys, moved = keys_of_torch(s, k)
    descent = Descent(s, q, keys, v, target)
    if s.xp is np:
        for _ in range(REPLAYS):
            descent.steps()
    else:
        run_in_graph(descent)
    print(f"  mean square distance from the targets: {float((descent.do**2).mean()):.4f}")

    wanted = directly(q, k, v, target)
    # Every step rounds, and the later ones make what came before larger: so much.
    growth = np.abs(directly(q + 1e-8 * nudge, k, v, target) - wanted).max() / 1e-8
    rounded = np.finfo(float).eps * np.abs(wanted).max() * STEPS * REPLAYS
    return verdict(
        error_of_the_queries=(np.abs(s.numpy(descent.q) - wanted).max(), 16 * growth * rounded),
        bytes_between_the_keys_of_PyTorch_and_ours=(moved, 0),
    )


if __name__ == "__main__":
    raise SystemExit(main())
