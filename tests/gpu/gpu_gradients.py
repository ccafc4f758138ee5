"""Gradients on a GPU: of plain arrays, and of drawn problems with all around them watched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import cupy_flash
from backward_problems import Backward
from cupy_flash.accuracy import accumulation
from gpu_attention import SENTINEL, options_on_gpu
from gradient_paths import QKV, GradientPath
from layouts import Strided, strided
from problems import result_dtype
from test_gpu_bugcases import Memory

Array = np.ndarray[Any, Any]

# Bytes before and after a workspace; its address stays a multiple of them.
GUARD = 4096
PATTERN = 0xA5


def gpu_path(kernel: str) -> GradientPath:
    def gradients(
        do: Array,
        q: Array,
        k: Array,
        v: Array,
        dlse: Array | None = None,
        wrt: tuple[str, ...] = QKV,
        out: Any = None,
        lse: Array | None = None,
        **options: Any,
    ) -> dict[str, Array]:
        import cupy

        memory = Memory()
        moved = {
            name: memory.move(x) if isinstance(x, np.ndarray) else x for name, x in options.items()
        }
        do, q, k, v = map(memory.move, (do, q, k, v))
        o, own_lse = cupy_flash.attention(q, k, v, **moved, return_lse=True, kernel=kernel)
        targets = None
        if out is not None:
            targets = tuple(None if x is None else memory.move(x) for x in out)
        try:
            found = cupy_flash.attention_backward(
                *(do, q, k, v, cupy.ascontiguousarray(o)),
                own_lse if lse is None else cupy.asarray(lse),
                dlse=None if dlse is None else memory.move(dlse),
                wrt=wrt,
                out=targets,
                kernel=kernel,
                **moved,
            )
        finally:
            memory.fetch()
        return {name: x.get() for name, x in zip(wrt, found, strict=True)}

    return GradientPath(gradients, kernel)


def guarded_workspace(size: int) -> tuple[Any, Any]:
    """Return `size` bytes, and those and the guards around them."""
    import cupy

    memory = cupy.full(2 * GUARD + size, PATTERN, np.uint8)
    return memory[GUARD : GUARD + size], memory


def assert_guarded(memory: Any, size: int) -> None:
    after = memory.get()
    beside = np.concatenate([after[:GUARD], after[GUARD + size :]])
    assert (beside == PATTERN).all(), "something beside the workspace was written"


def attention_backward(
    call: Backward, kernel: str | None, layouts: Mapping[str, str] | None = None
) -> dict[str, Array]:
    """Compute a drawn problem; check that nothing but gradients and the workspace was written.

    With `layouts` of gradients, by name, those and the workspace are the caller's.
    """
    arrays = call.arrays
    options = options_on_gpu(arrays) | {"kernel": kernel}
    inputs = [x.cupy() for x in arrays.inputs().values()]
    o, lse = cupy_flash.attention(*inputs, **options, return_lse=True)
    targets: dict[str, Strided] = {}
    workspace = memory = None
    size = 0
    if layouts is not None:
        sources = arrays.inputs() | arrays.small()
        scale = np.dtype(accumulation(result_dtype(arrays.case)))
        for name in call.wrt:
            shape = sources[name].shape if name in sources else ()
            dtype = sources[name].buffer.dtype if name in sources else scale
            layout = layouts.get(name, "contiguous") if len(shape) >= 2 else "contiguous"
            # Layouts need two axes; those in front are dropped again.
            missing = max(2 - len(shape), 0)
            x = strided((1,) * missing + shape, dtype, layout, SENTINEL)
            targets[name] = Strided(
                x.buffer, x.shape[missing:], x.strides[missing:], x.start, layout
            )
        size = cupy_flash.workspace_size(*inputs, wrt=call.wrt, **options)
        workspace, memory = guarded_workspace(size)
    found = cupy_flash.attention_backward(
        *(call.do.cupy(), *inputs, o, lse),
        dlse=None if call.dlse is None else call.dlse.cupy(),
        wrt=call.wrt,
        out=tuple(x.cupy() for x in targets.values()) or None,
        workspace=workspace,
        **options,
    )
    results = {name: x.get() for name, x in zip(call.wrt, found, strict=True)}
    read = arrays.inputs() | arrays.small() | {"do": call.do}
    read |= {} if call.dlse is None else {"dlse": call.dlse}
    for name, x in read.items():
        assert x.fetch().tobytes() == x.buffer.tobytes(), f"{name} changed"
    for name, target in targets.items():
        after = target.fetch()
        untouched = np.array(SENTINEL, after.dtype).view(f"u{after.itemsize}")
        assert (target.outside(after) == untouched).all(), f"something beside d{name} was written"
    if memory is not None:
        assert_guarded(memory, size)
    return results
