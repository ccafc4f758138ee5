"""From arrays to a Problem: broadcasting, grouped heads, strides, memory order."""

from __future__ import annotations

import dataclasses
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from cupy_flash import attention
from cupy_flash.arrays import describe, planned
from cupy_flash.options import check_options
from cupy_flash.problem import Problem, make_problem

F32 = np.dtype(np.float32)


def problem_of(q, k, v, out=None, **options):
    infos = (describe(name, x) for name, x in (("q", q), ("k", k), ("v", v)))
    out = None if out is None else describe("out", out)
    return make_problem(*infos, check_options(**options), out)


def of_shapes(q, k, v, **options):
    infos = (planned(shape, F32, "numpy") for shape in (q, k, v))
    return make_problem(*infos, check_options(**options))


def matmul_shape(q, k, v):
    """Shape of q k^T v by numpy.matmul itself; None where it refuses."""
    q, k, v = (as_strided(np.empty(1), shape, (0,) * len(shape)) for shape in (q, k, v))
    try:
        return np.matmul(np.matmul(q, k.swapaxes(-1, -2)), v).shape
    except ValueError:
        return None


axis = st.sampled_from((0, 1, 1, 2, 3))


@given(
    st.tuples(*[st.lists(axis, max_size=4)] * 3),
    st.tuples(*[st.integers(0, 3)] * 4),
)
def test_leading_axes_broadcast_as_in_matmul(leading, sizes):
    m, n, d, p = sizes
    shapes = [
        (*lead, *matrix) for lead, matrix in zip(leading, ((m, d), (n, d), (n, p)), strict=True)
    ]
    want = matmul_shape(*shapes)
    try:
        problem = of_shapes(*shapes)
    except ValueError:
        assert want is None
        return
    if want is not None:
        assert problem.out_shape == want
        assert problem.lse_shape == want[:-1]
        assert (problem.m, problem.n, problem.d, problem.p) == sizes
        assert problem.entries == math.prod(want[:-2])
    else:
        # Grouped heads are what matmul doesn't have; the other leading axes still broadcast.
        q, k, v = (((1,) * (4 - len(lead)) + tuple(lead))[-1] for lead in leading)
        assert max(map(len, leading)) > 1
        assert q % max(k, v) == 0 or 0 in (q, k, v)
        assert problem.batch == np.broadcast_shapes(*(tuple(lead[:-1]) for lead in leading))


@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (5, 1), (71, 1), (8, 8), (48, 2), (1, 3)])
def test_query_head_h_uses_key_head_h_over_group(heads, kv_heads):
    rng = np.random.default_rng(heads)
    q, k, v = (rng.standard_normal((2, h, 3, 4)) for h in (heads, kv_heads, kv_heads))
    problem = problem_of(q, k, v)
    assert (problem.heads, problem.kv_heads) == (max(heads, kv_heads), kv_heads)
    assert problem.group == max(heads // kv_heads, 1)
    out = attention(q, k, v)
    for h in range(problem.heads):
        alone = attention(
            q[:, min(h, heads - 1)], k[:, h // problem.group], v[:, h // problem.group]
        )
        np.testing.assert_array_equal(out[:, h], alone)


@pytest.mark.parametrize(("k_heads", "v_heads"), [(1, 3), (3, 1)])
def test_k_or_v_may_have_one_head_for_all(k_heads, v_heads):
    problem = of_shapes((2, 6, 4, 5), (2, k_heads, 7, 5), (2, v_heads, 7, 5))
    assert (problem.heads, problem.kv_heads) == (6, 3)
    assert (problem.k.head == 0, problem.v.head == 0) == (k_heads == 1, v_heads == 1)


def test_fewer_axes_have_no_heads():
    for shape in ((3, 5), (4, 3, 5)):
        problem = of_shapes(shape, shape, shape)
        assert (problem.batch, problem.heads, problem.kv_heads) == (shape[:-2], 1, 1)
        assert problem.q.head == problem.o.head == 0


@given(st.permutations(range(4)), st.lists(st.sampled_from((1, -1, 2, -3)), min_size=4, max_size=4))
def test_element_strides_of_every_view(order, steps):
    base = np.zeros((7, 9, 11, 13), np.float64)
    q = base[tuple(slice(None, None, step) for step in steps)].transpose(order)
    problem = problem_of(q, q, q)
    strides = tuple(s // 8 for s in q.strides)
    assert (*problem.q.batch, problem.q.head, problem.q.row, problem.q.column) == strides


@pytest.mark.parametrize("stride", [0, 4, 12, 1 << 42, -(1 << 40), 3])
@pytest.mark.parametrize("name", ["q", "k", "v", "k_lengths"])
def test_strides_of_axes_of_extent_1_mean_nothing(name, stride):
    arrays = {x: np.ones((1, 1, 1, 5), np.float32) for x in "qkv"}
    arrays["k_lengths"] = np.ones(1, np.int32)
    plain = problem_of(**arrays)
    x = arrays[name]
    row = x.strides[-1:] if name != "k_lengths" else (stride,)
    arrays[name] = np.ndarray(x.shape, x.dtype, x, 0, (stride,) * (x.ndim - 1) + row)
    assert problem_of(**arrays) == plain


def test_broadcast_axes_have_stride_0():
    k = np.broadcast_to(np.ones((6, 5), np.float32), (2, 3, 6, 5))
    problem = problem_of(np.ones((2, 3, 4, 5), np.float32), k, k[0])
    assert (problem.k.batch, problem.k.head, problem.v.batch) == ((0,), 0, (0,))


@given(st.permutations(range(4)), st.sampled_from((1, 3)), st.sampled_from((1, 4)))
def test_out_has_the_memory_order_of_q(order, p, flipped):
    shape = (2, 3, 4, 5)
    memory = np.ones([shape[axis] for axis in order], np.float32)
    q = memory.transpose(np.argsort(order))
    q = q[:, :, ::-1] if flipped == 1 else q
    out = attention(q, np.ones((2, 1, 6, 5), np.float32), np.ones((2, 1, 6, p), np.float32))
    assert out.shape == (2, 3, 4, p)
    # Transposed back, out is contiguous like q's memory.
    assert out.transpose(order).flags.c_contiguous


@pytest.mark.parametrize(
    "sizes", [(2, 3, 4, 5), (1, 3, 4, 5), (2, 1, 4, 5), (2, 3, 1, 5), (2, 3, 4, 1)]
)
def test_a_batch_seq_head_dim_user_gets_a_view_back(sizes):
    batch, seq, heads, dim = sizes
    x = np.ones(sizes, np.float32)
    out = attention(x.swapaxes(1, 2), x.swapaxes(1, 2), x.swapaxes(1, 2)).swapaxes(1, 2)
    flat = out.reshape(batch, seq, heads * dim)
    assert np.shares_memory(flat, out)
    assert flat.flags.c_contiguous


def test_axes_that_q_lacks_come_outermost():
    q = np.ones((3, 4, 5), np.float32).swapaxes(0, 1)
    k = np.ones((2, 2, 4, 6, 5), np.float32)
    assert attention(q, k, k).strides == (480, 240, 20, 80, 4)
    wide = np.broadcast_to(q, (2, 2, 4, 3, 5))
    assert attention(wide, k, k).strides == (480, 240, 20, 80, 4)


def test_lse_is_contiguous():
    x = np.ones((2, 4, 3, 5), np.float16).swapaxes(1, 2)
    lse = attention(x, x, x, return_lse=True)[1]
    assert lse.flags.c_contiguous
    assert lse.dtype == np.float32


def test_a_problem_is_frozen_hashable_and_printable():
    problem, again = (of_shapes((2, 3, 5), (2, 3, 5), (2, 3, 5), causal=True) for _ in range(2))
    assert problem == again
    assert len({problem, again}) == 1
    for field in dataclasses.fields(Problem):
        assert f"{field.name}=" in repr(problem)
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(problem, field.name, None)


@pytest.mark.parametrize(
    ("shape", "batch"),
    [
        ((), (0, 0)),
        ((1,), (0, 0)),
        ((3,), (0, 1)),
        ((2, 1), (1, 0)),
        ((2, 3), (3, 1)),
        ((1, 3), (0, 1)),
    ],
)
def test_lengths_broadcast_to_the_batch_axes(shape, batch):
    lengths = np.zeros(shape, np.int64)
    q = np.ones((2, 3, 4, 5, 6), np.float32)
    problem = problem_of(q, q, q, q_lengths=lengths)
    assert problem.q_lengths.batch == batch
    assert problem.q_lengths.dtype == "int64"
    assert problem.k_lengths is None


@pytest.mark.parametrize(
    ("options", "offset"),
    [
        ({}, 3),
        ({"causal": True}, 3),
        ({"window": (1, 1)}, 3),
        ({"alibi_slopes": np.array(1.0)}, 3),
        ({"offset": 0}, 0),
        ({"offset": -2}, -2),
        ({"k_lengths": np.array([2, 7])}, None),
        ({"q_lengths": np.array([2, 4])}, None),
        ({"q_lengths": np.array([2, 4]), "offset": 0}, 0),
    ],
)
def test_offset_none_is_bottom_right_of_what_counts(options, offset):
    x = {"q": np.ones((2, 1, 4, 5)), "k": np.ones((2, 1, 7, 5)), "v": np.ones((2, 1, 7, 5))}
    assert problem_of(**x, **options).offset == offset


@pytest.mark.parametrize(
    ("q_length", "k_length"), [(4, 7), (4, 2), (1, 7), (3, 3), (0, 5), (4, 0), (2, 1)]
)
def test_offset_follows_each_entrys_lengths(q_length, k_length):
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((3, 2, rows, 5)) for rows in (4, 7, 7))
    lengths = {"q_lengths": np.array([4, q_length, 1]), "k_lengths": np.array([7, k_length, 2])}
    out = attention(q, k, v, causal=True, **lengths)
    alone = attention(q[1, :, :q_length], k[1, :, :k_length], v[1, :, :k_length], causal=True)
    np.testing.assert_allclose(out[1, :, :q_length], alone, rtol=1e-13)
    assert (out[1, :, q_length:] == 0).all()


@pytest.mark.parametrize("name", ["mask", "bias"])
@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((), (0, 0, 0, 0)),
        ((7,), (0, 0, 0, 1)),
        ((4, 1), (0, 0, 1, 0)),
        ((4, 7), (0, 0, 7, 1)),
        ((1, 7), (0, 0, 0, 1)),
        ((3, 1, 1), (0, 1, 0, 0)),
        ((2, 1, 1, 7), (7, 0, 0, 1)),
        ((2, 3, 4, 7), (84, 28, 7, 1)),
    ],
)
def test_mask_and_bias_broadcast_over_heads_rows_and_keys(name, shape, strides):
    x = np.zeros(shape, bool if name == "mask" else np.float32)
    q, k = np.ones((2, 3, 4, 5), np.float32), np.ones((2, 1, 7, 5), np.float32)
    operand = getattr(problem_of(q, k, k, **{name: x}), name)
    assert (*operand.batch, operand.head, operand.row, operand.column) == strides


@pytest.mark.parametrize("name", ["alibi_slopes", "sinks"])
@pytest.mark.parametrize(
    ("shape", "strides"), [((), (0, 0)), ((3,), (0, 1)), ((2, 1), (1, 0)), ((2, 3), (3, 1))]
)
def test_slopes_and_sinks_broadcast_over_outs_leading_axes(name, shape, strides):
    q, k = np.ones((2, 3, 4, 5), np.float32), np.ones((2, 1, 7, 5), np.float32)
    operand = getattr(problem_of(q, k, k, **{name: np.zeros(shape)}), name)
    assert (*operand.batch, operand.head) == strides
    assert (operand.row, operand.column) == (0, 0)


def test_without_a_head_axis_the_batch_axes_lead():
    q = np.ones((2, 4, 5), np.float32)
    problem = problem_of(q, q, q, mask=np.ones((2, 1, 4), bool), sinks=np.zeros(2))
    assert (problem.mask.batch, problem.mask.head, problem.mask.row) == ((4,), 0, 0)
    assert (problem.sinks.batch, problem.sinks.head) == ((1,), 0)
    slope = np.array(0.5)
    one = problem_of(q[0], q[0], q[0], mask=np.ones((4, 4), bool), alibi_slopes=slope)
    assert (one.mask.batch, one.mask.row, one.alibi_slopes.batch) == ((), 4, ())
    with pytest.raises(ValueError, match=re.escape("say mask[..., None, :]")):
        problem_of(q, q[:, :3], q[:, :3], mask=np.ones((2, 3), bool))


@pytest.mark.parametrize("kv_heads", [2, 3])
def test_small_arrays_count_query_heads(kv_heads):
    """One query head that meets several key heads has as many results."""
    q, k = np.ones((1, 4, 5), np.float32)[None], np.ones((1, kv_heads, 6, 5), np.float32)
    problem = problem_of(q, k, k, sinks=np.zeros(kv_heads), mask=np.ones((kv_heads, 1, 1), bool))
    assert (problem.sinks.head, problem.mask.head) == (1, 1)


@given(st.lists(axis, max_size=5), st.tuples(axis, axis), st.tuples(axis, axis))
def test_what_numpy_cannot_broadcast_is_refused(shape, leading, sizes):
    shape, (m, n) = tuple(shape), sizes
    target = (*leading, m, n)
    try:
        np.broadcast_to(np.empty(shape), target)
    except ValueError:
        fits = False
    else:
        fits = True
    q, k = (*leading, m, 2), (*leading, n, 2)
    for name, dtype in (("mask", np.dtype(bool)), ("bias", F32)):
        options = {name: planned(shape, dtype, "numpy")}
        if fits:
            of_shapes(q, k, k, **options)
        else:
            words = f"{name} has shape {shape}; it must broadcast to {target}"
            with pytest.raises(ValueError, match=re.escape(words)):
                of_shapes(q, k, k, **options)
