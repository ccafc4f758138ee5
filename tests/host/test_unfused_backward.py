"""Gradients of standard attention are those of attention."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from cupy_flash import reference, unfused_backward
from cupy_flash.unfused_backward import standard_attention_backward
from test_unfused import DTYPES, SHAPES, draw

OPTIONS = [{}, {"causal": True}, {"causal": True, "offset": -3, "scale": 0.7}]
# Of the largest element: sums of 150 terms, and for 16 bits the rounding of the result.
TOLERANCE = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2e-6, "float64": 4e-15}


def drawn(shapes, dtype=np.float64, **options):
    q, k, v = draw(shapes, dtype)
    out = reference.attention(q, k, v, **options).out
    return np.random.default_rng(1).standard_normal(out.shape).astype(dtype), q, k, v


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", OPTIONS)
def test_they_are_gradients_of_attention(shapes, dtype, options):
    given = drawn(shapes, dtype)
    exact = reference.attention_backward(*given, **options)
    found = standard_attention_backward(*given, **options)
    assert found._fields == ("q", "k", "v")
    for x, gradient, want in zip(given[1:], found, exact, strict=True):
        assert (gradient.dtype, gradient.shape) == (x.dtype, x.shape)
        off = np.abs(gradient - want).max(initial=0)
        assert off <= TOLERANCE[np.dtype(dtype).name] * np.abs(want).max(initial=0)


def test_each_gradient_has_its_arrays_dtype():
    do, q, k, v = drawn(((4, 3), (5, 3), (5, 3)), np.float32)
    found = standard_attention_backward(do, q, k.astype(ml_dtypes.bfloat16), v)
    assert [x.dtype for x in found] == [np.float32, ml_dtypes.bfloat16, np.float32]


def test_arguments_are_left_alone():
    arrays = drawn(((2, 4, 5, 3), (2, 2, 6, 3), (2, 2, 6, 3)))
    before = [x.copy() for x in arrays]
    standard_attention_backward(*arrays, causal=True)
    for x, copy in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(x, copy)


def test_kernels_on_a_gpu_are_given_what_numpy_computes(monkeypatch):
    def row_sums(P, dP, axis, keepdims):
        return (P * dP).sum(axis=axis, keepdims=keepdims)

    def products(P, D, dS):
        dS[...] = P * (dS - D)
        return dS

    P, dP = (np.random.default_rng(seed).random((2, 5, 7)) for seed in range(2))
    want = unfused_backward._score_gradients(P, dP.copy())
    monkeypatch.setattr(unfused_backward, "_kernels", lambda: (row_sums, products))
    monkeypatch.setattr(unfused_backward, "np", type("NoNumpy", (), {"ndarray": ()}))
    found = unfused_backward._score_gradients(P, dP)
    assert found is dP
    np.testing.assert_allclose(found, want, rtol=1e-13)
