"""Standard attention, the baseline of every comparison, must itself be right and not wasteful."""

from __future__ import annotations

import sys
import types

import ml_dtypes
import numpy as np
import pytest

from cupy_flash import reference, unfused
from cupy_flash.accuracy import compare, out_bound
from cupy_flash.commands.measure import Cpu
from cupy_flash.errors import INSTALL_CUPY
from cupy_flash.unfused import CublasMissing, cublas_problem, standard_attention

DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
SHAPES = {
    "two axes": ((33, 24), (47, 24), (47, 40)),
    "three axes broadcast": ((3, 20, 16), (1, 30, 16), (30, 16)),
    "heads": ((2, 3, 20, 16), (2, 3, 30, 16), (2, 3, 30, 16)),
    "grouped heads": ((2, 6, 20, 16), (2, 2, 30, 16), (2, 2, 30, 8)),
    "one key head": ((2, 6, 20, 16), (2, 1, 30, 16), (2, 1, 30, 16)),
    "one head of k": ((2, 6, 20, 16), (2, 1, 30, 16), (2, 2, 30, 16)),
    "one query head": ((2, 1, 20, 16), (2, 3, 30, 16), (2, 3, 30, 16)),
    "keys without batch": ((2, 6, 20, 16), (2, 30, 16), (2, 30, 16)),
    "five axes": ((2, 1, 4, 17, 8), (1, 3, 2, 19, 8), (2, 19, 8)),
    "more rows": ((1, 2, 30, 8), (1, 2, 20, 8), (1, 2, 20, 8)),
    "no rows": ((2, 0, 8), (2, 5, 8), (2, 5, 8)),
    "no keys": ((2, 4, 5, 8), (2, 2, 0, 8), (2, 2, 0, 3)),
    "no columns": ((5, 0), (4, 0), (4, 3)),
    "no values": ((5, 3), (4, 3), (4, 0)),
}


def draw(shapes, dtype=np.float64):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"causal": True, "offset": -3, "scale": 0.7}]
)
def test_it_is_attention(shapes, dtype, options):
    q, k, v = draw(shapes, dtype)
    exact = reference.attention(q, k, v, **options)
    scale = options.get("scale", reference.default_scale(q.shape[-1]))
    out = standard_attention(q, k, v, **options)
    assert out.dtype == dtype
    comparison = compare(out, exact.out, out_bound(exact, np.dtype(dtype).name, q, k, v, scale))
    assert comparison.ok, comparison


@pytest.mark.parametrize("options", [{}, {"causal": True}])
def test_both_softmaxes_serve(options):
    q, k, v = draw(((2, 33, 24), (2, 47, 24), (2, 47, 40)))
    exact = reference.attention(q, k, v, **options)
    bound = out_bound(exact, "float64", q, k, v, reference.default_scale(24))
    for method in ("online", "three_pass"):
        comparison = compare(
            standard_attention(q, k, v, method=method, **options), exact.out, bound
        )
        assert comparison.ok, comparison
    with pytest.raises(ValueError, match="method is 'fast'"):
        standard_attention(q, k, v, method="fast", **options)


def test_offset_counts_only_with_causal():
    q, k, v = draw(((5, 4), (6, 4), (6, 4)))
    np.testing.assert_array_equal(
        standard_attention(q, k, v, offset=-100), standard_attention(q, k, v)
    )


def test_a_row_without_keys_is_zero():
    q, k, v = draw(((4, 3), (4, 3), (4, 3)))
    out = standard_attention(q, k, v, causal=True, offset=-2)
    assert (out[:2] == 0).all()
    np.testing.assert_allclose(out[2], v[0], rtol=1e-15)


def test_large_scores_stay_finite():
    q, k, v = draw(((4, 3), (5, 3), (5, 3)))
    assert np.isfinite(standard_attention(q, k, v, scale=1e6)).all()


def test_mixed_dtypes_promote():
    q, k, v = draw(((4, 3), (5, 3), (5, 3)), np.float32)
    assert standard_attention(q, k.astype(ml_dtypes.bfloat16), v).dtype == np.float32
    assert standard_attention(q, k, v.astype(np.float64)).dtype == np.float64


def test_arguments_are_left_alone():
    arrays = draw(((2, 4, 5, 3), (2, 2, 6, 3), (2, 2, 6, 3)))
    before = [x.copy() for x in arrays]
    standard_attention(*arrays, causal=True)
    for x, copy in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(x, copy)


def test_grouped_heads_cost_one_score_matrix_each():
    q, k, v = draw(((1, 8, 128, 64), (1, 1, 128, 64), (1, 1, 128, 64)), np.float32)
    scores = 8 * 128 * 128 * 4
    extra = Cpu().extra_bytes(lambda: standard_attention(q, k, v))
    assert scores <= extra < 1.1 * scores


@pytest.mark.parametrize(
    ("shapes", "error", "words"),
    [
        (((1, 6, 4, 8), (1, 4, 4, 8), (1, 4, 4, 8)), ValueError, "6 heads and k and v have 4"),
        (((1, 6, 4, 8), (1, 0, 4, 8), (1, 0, 4, 8)), ValueError, "6 heads and k and v have 0"),
    ],
)
def test_heads_that_do_not_divide_are_named(shapes, error, words):
    with pytest.raises(error, match=words):
        standard_attention(*draw(shapes))


def test_integers_are_refused():
    q, k, v = draw(((4, 3), (5, 3), (5, 3)), np.int32)
    with pytest.raises(TypeError, match="int32"):
        standard_attention(q, k, v)


@pytest.fixture(params=[(12090, "nvidia-cublas-cu12"), (13000, "nvidia-cublas")], ids=["12", "13"])
def package_without_cublas(request, monkeypatch):
    """Stand in for a CuPy whose cuBLAS can't be opened; the package that would help."""
    version, package = request.param
    cuda = types.ModuleType("cupy.cuda")
    cuda.runtime = types.SimpleNamespace(runtimeGetVersion=lambda: version)
    cupy = types.ModuleType("cupy")
    cupy.cuda = cuda
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    return package


def test_missing_cublas_says_what_to_install(package_without_cublas):
    first, second = cublas_problem().splitlines()
    assert first == f"needs cuBLAS: pip install {package_without_cublas}"
    assert "cupy.matmul" in second


def test_missing_cublas_stops_before_any_product(package_without_cublas):
    with pytest.raises(CublasMissing, match="pip install") as caught:
        standard_attention(object(), object(), object())
    assert isinstance(caught.value, ImportError)


def test_without_cupy_its_own_message_is_shown(monkeypatch):
    def fail():
        raise ImportError(INSTALL_CUPY)

    monkeypatch.setattr(unfused, "import_cupy", fail)
    assert cublas_problem() == INSTALL_CUPY
