"""The primitives of kernels_cu/ptx on a GPU against NumPy and, for sums, the emulator."""

from __future__ import annotations

import numpy as np
import pytest

from cupy_flash.compile import OPTIONS
from nvrtc import compilers, versions
from primitives import (
    EXP2,
    EXPONENTIAL,
    PRIMITIVES,
    TANGENT,
    emulated,
    emulated_products,
    on_gpu,
)
from record_primitives import CASES, DTYPES, cases, kernel_text, products
from variants import CUPY_OPTIONS

EVERYTHING = PRIMITIVES | {
    "exp2_approx": EXP2,
    "exponential": EXPONENTIAL,
    "hyperbolic_tangent": TANGENT,
}
# What emulator/tensor_core.hpp describes: older tensor cores sum fewer products at once.
ARCH_OF_THE_SUMS = "90"


@pytest.mark.parametrize(
    "version",
    [pytest.param(version, marks=pytest.mark.needs_nvrtc(version)) for version in versions()],
)
@pytest.mark.parametrize("arch", [80, 90])
def test_kernels_compile(version: str, arch: int) -> None:
    options = (*OPTIONS, *CUPY_OPTIONS, f"-arch=sm_{arch}")
    texts = [primitive.text for primitive in EVERYTHING.values()]
    for text in (*texts, *(kernel_text(dtype)[0] for dtype in DTYPES)):
        compilers()[version].compile(text, "primitive.cu", options)


@pytest.mark.gpu
@pytest.mark.parametrize("name", PRIMITIVES)
def test_primitive_computes_its_definition(name: str) -> None:
    np.testing.assert_array_equal(on_gpu(PRIMITIVES[name]), PRIMITIVES[name].expected())


@pytest.mark.gpu
def test_exp2_is_within_its_documented_error() -> None:
    y, nearest = (words.view(np.float32) for words in (on_gpu(EXP2), EXP2.expected()))
    special = ~np.isfinite(nearest) | (nearest == 0)
    np.testing.assert_array_equal(y[special], nearest[special])
    # 2^-22, and half a unit in the last place for rounding the exact power.
    np.testing.assert_allclose(y[~special], nearest[~special], rtol=2.0**-22 + 2.0**-24, atol=0)


@pytest.mark.gpu
def test_tanh_is_within_what_the_bounds_count_on() -> None:
    y, nearest = (words.view(np.float32) for words in (on_gpu(TANGENT), TANGENT.expected()))
    assert np.isnan(y[np.isnan(nearest)]).all()
    rest = ~np.isnan(nearest)
    # 4 ulp (docs/numerics.md), and half a unit for the nearest number.
    off = np.abs(y[rest].astype(np.float64) - nearest[rest]) / np.spacing(np.abs(nearest[rest]))
    assert off.max() <= 4.5


@pytest.mark.gpu
@pytest.mark.needs_compiler
def test_the_exponential_of_float64_has_the_emulator_s_bits() -> None:
    y, expected = (words.view(np.float64) for words in (on_gpu(EXPONENTIAL), emulated(EXPONENTIAL)))
    np.testing.assert_array_equal(y, expected)


@pytest.mark.gpu
@pytest.mark.needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_are_cut_like_the_emulator_s(dtype: str) -> None:
    import cupy

    arch = cupy.cuda.Device().compute_capability
    if arch != ARCH_OF_THE_SUMS:
        pytest.skip(f"the emulator sums like sm_{ARCH_OF_THE_SUMS}, this GPU is sm_{arch}")
    fragments = cases(dtype)
    assert len(fragments["c"]) == CASES
    d, expected = products(dtype, fragments), emulated_products(dtype, fragments)
    different = (d.view(np.uint32) != expected.view(np.uint32)).any(axis=(1, 2))
    assert not different.any(), sorted(set(fragments["kind"][different]))
