"""Which arrays share elements, and that a result never shares one with what is still read."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from cupy_flash import attention
from cupy_flash.arrays import describe, overlaps_itself, share_an_element
from cupy_flash.problem import SMALL_ARRAYS

F32 = np.dtype(np.float32)


def addresses(x):
    grid = np.meshgrid(*(np.arange(n) * s for n, s in zip(x.shape, x.strides, strict=True)))
    starts = sum(grid, np.zeros((), int)).ravel() + x.pointer
    return starts


views = st.tuples(
    st.integers(0, 6),
    st.lists(st.tuples(st.integers(1, 3), st.integers(-5, 5)), min_size=1, max_size=3),
)


@given(views, views)
def test_sharing_is_exact(first, second):
    buffer = np.zeros(128, np.float32)

    def view(start, axes):
        shape, steps = zip(*axes, strict=True)
        strides = [4 * step for step in steps]
        return describe("x", np.ndarray(shape, F32, buffer, 4 * (start + 40), strides))

    a, b = view(*first), view(*second)
    assert share_an_element(a, b) == bool(set(addresses(a)) & set(addresses(b)))
    assert overlaps_itself(a) or len(set(addresses(a))) == math.prod(a.shape)


@given(st.permutations(range(3)), st.lists(st.integers(-3, 3).filter(bool), min_size=3, max_size=3))
def test_slices_and_transposes_do_not_overlap_themselves(order, steps):
    view = np.zeros((4, 5, 6))[tuple(slice(None, None, step) for step in steps)].transpose(order)
    assert not overlaps_itself(describe("out", view))


def call(arrays, **options):
    q, k, v, *small = arrays.values()
    return attention(q, k, v, **dict(zip(SMALL_ARRAYS, small, strict=True)), **options)


# Element type of arrays of no axis.
SINGLE = {
    "alibi_slopes": np.float32,
    "sinks": np.float32,
    "q_lengths": np.int32,
    "k_lengths": np.int32,
}


@pytest.mark.parametrize("name", ["q", "k", "v", *SMALL_ARRAYS])
def test_one_shared_element_is_refused_and_interleaved_views_are_not(name):
    x = np.ones((8, 8), np.float32)
    arrays = dict.fromkeys("qkv", x) | {"mask": np.ones((8, 8), bool), "bias": x}
    arrays |= {single: np.array(8, dtype) for single, dtype in SINGLE.items()}
    buffer = np.full(192, 7, np.float32)
    out = buffer[:128:2].reshape(8, 8)
    from_outs_last = buffer[126:190].reshape(8, 8)
    between = buffer[1:128:2].reshape(8, 8)
    if name in SINGLE:
        from_outs_last = buffer[126:127].view(SINGLE[name]).reshape(())
        between = buffer[127:128].view(SINGLE[name]).reshape(())
    elif name == "mask":
        # Single bytes: the last one of out's last element, and one of each other element.
        from_outs_last = buffer.view(bool)[4 * 126 + 3 :][:64].reshape(8, 8)
        between = buffer.view(bool)[4:512:8].reshape(8, 8)
    with pytest.raises(ValueError, match=f"out shares memory with {name}"):
        call(arrays | {name: from_outs_last}, out=out)
    assert (buffer == 7).all()
    between[...] = 8
    call(arrays | {name: between}, out=out)
    assert np.isfinite(out).all()
    assert (out != 7).all()
    assert (between == between.dtype.type(8)).all()


def test_out_and_lse_may_interleave_but_not_share():
    x = np.ones((4, 4), np.float32)
    buffer = np.full(32, 7, np.float32)
    out, lse = buffer[:20].reshape(4, 5)[:, :4], buffer[4:24:5]
    attention(x, x, x, out=(out, lse), return_lse=True)
    np.testing.assert_allclose(lse, 2 + np.log(4), rtol=1e-6)
    np.testing.assert_allclose(out, 1, rtol=1e-6)
    buffer[:] = 7
    with pytest.raises(ValueError, match="out and the lse array in out share memory"):
        attention(x, x, x, out=(out, buffer[3:19:4]), return_lse=True)
    assert (buffer == 7).all()


@pytest.mark.parametrize("strides", [(0, 7, 1), (28, 0, 1), (28, 6, 1), (4, 4, 1), (28, 7, 0)])
def test_an_out_that_overlaps_itself_is_refused(strides):
    buffer = np.full(200, 7, np.float32)
    out = as_strided(buffer, (2, 4, 7), [4 * step for step in strides])
    x = np.ones((2, 4, 7), np.float32)
    with pytest.raises(ValueError, match="out has elements that share memory"):
        attention(x, x, x, out=out)
    assert (buffer == 7).all()


@pytest.mark.parametrize("shift", [0, 1, 7, -7])
def test_out_over_q_is_refused_and_q_may_be_k_and_v(shift):
    buffer = np.ones(64, np.float32)
    q, out = (buffer[8 + s : 43 + s].reshape(5, 7) for s in (0, shift))
    with pytest.raises(ValueError, match="out shares memory with q"):
        attention(q, q, q, out=out)
    assert (buffer == 1).all()
    np.testing.assert_allclose(attention(q, q, q), 1, rtol=1e-6)
