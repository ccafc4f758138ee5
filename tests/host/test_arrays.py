"""The overlap test's short cut against NumPy's exact solver."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cupy_flash.arrays import describe, share_an_element

BUFFER = np.zeros(400, np.float32)


@st.composite
def views(draw):
    """A view of BUFFER: any start, up to three axes of any stride."""
    axes = draw(st.lists(st.tuples(st.integers(0, 4), st.integers(-20, 20)), max_size=3))
    shape = tuple(extent for extent, _ in axes)
    strides = tuple(4 * stride for _, stride in axes)
    start = draw(st.integers(240, 260)) - draw(st.sampled_from((0, 0, 100)))
    return np.ndarray(shape, np.float32, BUFFER, 4 * start, strides)


SEEN = set()


@given(views(), views())
def test_sharing_an_element_is_what_numpy_finds(a, b):
    want = np.shares_memory(a, b)
    SEEN.add((want, np.may_share_memory(a, b)))
    assert share_an_element(describe("a", a), describe("b", b)) == want


def test_far_apart_interleaved_and_shared_views_were_drawn():
    test_sharing_an_element_is_what_numpy_finds()
    assert {(False, False), (False, True), (True, True)} <= SEEN
