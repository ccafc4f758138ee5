"""The exact probes of gradients on a GPU, and that neighbours change no bit of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cupy_flash
from gpu_gradients import gpu_path
from gradient_paths import QKV, assert_same_bits
from gradient_probes import PROBES
from problems import DTYPES, KERNEL_DTYPES, KERNELS_AND_DTYPES

cupy = pytest.importorskip("cupy")

pytestmark = pytest.mark.gpu

# A bucket of head dims each; sm80 copies (20, 24) in units of 4 bytes, (64, 33) of 2.
KERNEL_DIMS = {
    "naive": ((20, 24), (140, 130)),
    "simt": ((20, 24), (64, 33), (100, 128), (256, 200)),
    "sm80": ((20, 24), (64, 33), (90, 96), (120, 128), (190, 192), (256, 200)),
}
OF_EVERY_WIDTH = (
    "one key",
    "many equal terms",
    "P4 permutations",
    "P8 layouts",
    "row alone",
    "linearity",
)
EVERY_PROBE = [
    (probe, dtype, kernel, d, p)
    for kernel, dims in KERNEL_DIMS.items()
    for d, p in dims
    for dtype in KERNEL_DTYPES[kernel]
    for probe in PROBES
    # Of arrays of options there is a kernel for each dtype: one width tells what they do.
    if d == 20 or probe in OF_EVERY_WIDTH
]


@pytest.mark.parametrize(("probe", "dtype", "kernel", "d", "p"), EVERY_PROBE)
def test_probe(probe: str, dtype: str, kernel: str, d: int, p: int) -> None:
    PROBES[probe](gpu_path(kernel), dtype, d, p)


def drawn(dtype: str, batch: int, seed: int = 1) -> list[Any]:
    """Draw do, q, k and v on the GPU."""
    rng = np.random.default_rng(seed)
    shapes = (4, 150, 40), (4, 150, 72), (2, 230, 72), (2, 230, 40)
    arrays = [rng.standard_normal((batch, *shape), np.float32) for shape in shapes]
    moved = [cupy.asarray(x.astype(DTYPES[dtype])) for x in arrays]
    # A non-blocking stream would not wait for the copies.
    cupy.cuda.Device().synchronize()
    return moved


def gradients(arrays: list[Any], kernel: str, **options: Any) -> dict[str, Any]:
    do, q, k, v = arrays
    o, lse = cupy_flash.attention(q, k, v, return_lse=True, kernel=kernel, **options)
    found = cupy_flash.attention_backward(do, q, k, v, o, lse, kernel=kernel, **options)
    return {name: x.get() for name, x in zip(QKV, found, strict=True)}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("kernel", "dtype"), KERNELS_AND_DTYPES)
def test_an_entry_does_not_depend_on_the_others(kernel: str, dtype: str, causal: bool) -> None:
    """Of dq, dk and dv: each entry has its own keys."""
    arrays = drawn(dtype, 3)
    want = gradients(arrays, kernel, causal=causal)
    for entry in range(3):
        one = np.s_[entry : entry + 1]
        got = gradients([x[one] for x in arrays], kernel, causal=causal)
        assert_same_bits(got, {name: x[one] for name, x in want.items()}, f"entry {entry} alone")
    many = [cupy.concatenate([x] * 50) for x in arrays]
    whole = {name: np.concatenate([x] * 50) for name, x in want.items()}
    assert_same_bits(gradients(many, kernel, causal=causal), whole, "in a batch of 150")
    for group in (0, 1):
        rows, keys = np.s_[:, 2 * group : 2 * group + 2], np.s_[:, group : group + 1]
        own = [x[rows] for x in arrays[:2]] + [x[keys] for x in arrays[2:]]
        part = {"q": want["q"][rows], "k": want["k"][keys], "v": want["v"][keys]}
        assert_same_bits(gradients(own, kernel, causal=causal), part, f"group {group} alone")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("kernel", "dtype"), KERNELS_AND_DTYPES)
def test_dq_of_rows_does_not_depend_on_the_others(kernel: str, dtype: str, causal: bool) -> None:
    do, q, k, v = drawn(dtype, 2)
    want = gradients([do, q, k, v], kernel, causal=causal)["q"]
    for begin, end in [(0, 1), (149, 150), (0, 63), (1, 65), (31, 32), (64, 150), (77, 79)]:
        rows = np.s_[:, :, begin:end]
        some = [cupy.ascontiguousarray(x[rows]) for x in (do, q)]
        got = gradients([*some, k, v], kernel, causal=causal, offset=230 - 150 + begin)["q"]
        assert_same_bits({"q": got}, {"q": want[rows]}, f"rows {begin} to {end} alone")
    other = [x.copy() for x in (do, q)]
    for x in other:
        x[:, :, ::2] = np.nan
    got = gradients([*other, k, v], kernel, causal=causal)["q"]
    odd = np.s_[:, :, 1::2]
    assert_same_bits({"q": got[odd]}, {"q": want[odd]}, "the other rows NaN")
