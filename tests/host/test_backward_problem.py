"""A backward call as a value: places of gradients; and what CuPy arrays are handed to."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

import fake_cupy
from cupy_flash import attention_backward, attention_vjp, workspace_size
from cupy_flash.arrays import describe
from cupy_flash.axes import Operand
from cupy_flash.backward.problem import Gradient, allocate, make_backward_problem
from cupy_flash.options import check_options
from cupy_flash.problem import SMALL_ARRAYS
from fake_cupy import FakeArray, on_gpu, qkv

LAUNCH = "cupy_flash.backward.launch"


def problem_of(q, k, v, leading, *, dtype="float32", wrt=("q", "k", "v"), dlse=False, **options):
    """Make the problem of fresh do, o and lse of C order."""
    o = np.ones((*leading, q.shape[-2], v.shape[-1]), dtype)
    lse = np.ones(o.shape[:-1], "float64" if dtype == "float64" else "float32")
    arrays = {"do": o, "q": q, "k": k, "v": v, "o": o, "lse": lse}
    if dlse:
        arrays["dlse"] = lse
    own = {name: options.pop(name) for name in ("out", "deterministic") if name in options}
    infos = {name: describe(name, x) for name, x in arrays.items()}
    return make_backward_problem(infos, check_options(**options), wrt=wrt, **own)


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def test_places_of_plain_gradients():
    problem = problem_of(ones(2, 4, 5, 8), ones(2, 2, 6, 8), ones(2, 2, 6, 3), (2, 4), dlse=True)
    assert problem.wrt == ("q", "k", "v")
    assert problem.deterministic
    q, k, v = problem.gradients
    assert q == Gradient(
        name="q",
        operand=Operand("float32", (160,), 40, 8, 1, unit=16),
        shape=(2, 4, 5, 8),
        order=None,
        batch=(2,),
        heads=4,
        rows=5,
        columns=8,
    )
    assert (k.operand.batch, k.operand.head, k.heads, k.rows, k.columns) == ((96,), 48, 2, 6, 8)
    assert (v.operand.batch, v.operand.head, v.heads, v.rows, v.columns) == ((36,), 18, 2, 6, 3)
    forward = problem.forward
    assert problem.do == forward.o
    assert (forward.o.batch, forward.o.head, forward.o.row) == ((60,), 15, 3)
    assert problem.dlse == forward.lse
    assert (forward.lse.batch, forward.lse.head, forward.lse.row) == ((20,), 5, 1)
    assert forward.lse.column == 0


def test_places_of_the_given_results_are_theirs():
    q = ones(2, 4, 5, 8)
    o, lse = ones(2, 5, 4, 8).swapaxes(1, 2), ones(4, 2, 5).swapaxes(0, 1)
    do = np.broadcast_to(ones(8), o.shape)
    given = {"do": do, "q": q, "k": q, "v": q, "o": o, "lse": lse, "dlse": lse[..., ::-1]}
    infos = {name: describe(name, x) for name, x in given.items()}
    problem = make_backward_problem(infos, check_options(), wrt=("q",))
    strides = problem.forward.o
    assert (strides.batch, strides.head, strides.row, strides.column) == ((160,), 8, 32, 1)
    assert (problem.forward.lse.batch, problem.forward.lse.head) == ((5,), 10)
    assert (problem.do.batch, problem.do.head, problem.do.row, problem.do.column) == ((0,), 0, 0, 1)
    assert problem.dlse.row == -1


def test_places_of_the_options_gradients():
    options = {
        "bias": ones(5, 1, dtype=np.float16),
        "sinks": ones(4),
        "alibi_slopes": ones(2, 1, dtype=np.float64),
    }
    wrt = ("bias", "sinks", "alibi_slopes", "scale")
    q = ones(2, 4, 5, 8)
    bias, sinks, slopes, scale = problem_of(q, q, q, (2, 4), wrt=wrt, **options).gradients
    assert bias.operand == Operand("float16", (0,), 0, 1, 0, unit=2)
    assert (bias.shape, bias.batch, bias.heads, bias.rows, bias.columns) == ((5, 1), (1,), 1, 5, 1)
    assert (sinks.operand.batch, sinks.operand.head, sinks.operand.row) == ((0,), 1, 0)
    assert (sinks.shape, sinks.batch, sinks.heads, sinks.rows) == ((4,), (1,), 4, 1)
    assert (slopes.operand.dtype, slopes.operand.batch, slopes.operand.head) == ("float64", (1,), 0)
    assert (slopes.batch, slopes.heads, slopes.columns) == ((2,), 1, 1)
    assert (scale.operand.dtype, scale.operand.batch, scale.shape) == ("float32", (0,), ())
    assert (scale.batch, scale.heads, scale.rows, scale.columns) == ((1,), 1, 1, 1)
    double = q.astype(float)
    own = problem_of(double, double, double, (2, 4), dtype="float64", wrt=("scale",))
    assert own.gradients[0].operand.dtype == "float64"


def test_summed_axes_have_stride_0_and_full_ones_of_stride_0_their_own():
    q, k = ones(1, 1, 5, 8), ones(6, 8)
    v = np.broadcast_to(ones(1, 1, 6, 3), (2, 4, 6, 3))
    gradients = problem_of(q, k, v, (2, 4)).gradients
    assert [x.batch for x in gradients] == [(1,), (1,), (2,)]
    assert [x.heads for x in gradients] == [1, 1, 4]
    assert [x.operand.batch for x in gradients] == [(0,), (0,), (72,)]
    assert [x.operand.head for x in gradients] == [0, 0, 18]
    assert [x.shape for x in gradients] == [q.shape, k.shape, v.shape]


def test_gradients_without_a_head_axis():
    gradients = problem_of(ones(3, 5, 8), ones(1, 6, 8), ones(6, 2), (3,)).gradients
    assert [(x.batch, x.heads, x.operand.head) for x in gradients] == [
        ((3,), 1, 0),
        ((1,), 1, 0),
        ((1,), 1, 0),
    ]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (3, 1, 0, 2), (2, 3, 1, 0)])
def test_a_fresh_gradient_is_allocated_in_memory_order(order):
    shape = (2, 4, 5, 8)
    dense = ones(*(shape[axis] for axis in order))
    q = dense.transpose([order.index(axis) for axis in range(4)])
    (gradient,) = problem_of(q, q, q, (2, 4), wrt=("q",)).gradients
    assert (gradient.order is None) == (order == (0, 1, 2, 3))
    fresh = allocate(np.empty, gradient)
    assert (fresh.shape, fresh.strides, fresh.dtype) == (shape, q.strides, q.dtype)
    where = gradient.operand
    steps = tuple(4 * x for x in (*where.batch, where.head, where.row, where.column))
    assert steps == q.strides
    target = np.zeros((8, 5, 4, 2), np.float32).T
    (gradient,) = problem_of(q, q, q, (2, 4), wrt=("q",), out=(target,)).gradients
    assert gradient.order is None
    assert (gradient.operand.row, gradient.operand.column) == (8, 40)


@pytest.fixture
def cupy(monkeypatch):
    yield from fake_cupy.installed(monkeypatch)


@pytest.fixture
def launched(cupy, monkeypatch):
    """Put a recorder in the place of the kernels."""
    calls = []

    def backward(problem, arrays, out, workspace, key):
        calls.append(SimpleNamespace(problem=problem, arrays=arrays, out=out, workspace=workspace))
        return tuple(f"gradient of {name}" for name in problem.wrt)

    def workspace_bytes(problem):
        calls.append(SimpleNamespace(problem=problem))
        return 1234

    fake = SimpleNamespace(backward=backward, workspace_bytes=workspace_bytes)
    monkeypatch.setitem(sys.modules, LAUNCH, fake)
    return calls


def test_cupy_arrays_go_to_the_kernels(launched):
    q, k, v = qkv()
    do, o, lse = on_gpu(), on_gpu(), on_gpu(q.shape[:-1])
    bias, lengths = on_gpu((6, 6)), fake_cupy.lengths(3)
    dk, workspace = on_gpu(), on_gpu((64,), "uint8")
    wrt = ("k", "bias", "scale")
    got = attention_backward(
        *(do, q, k, v, o, lse),
        wrt=wrt,
        out=(dk, None, None),
        workspace=workspace,
        bias=bias,
        k_lengths=lengths,
        causal=True,
        deterministic=False,
    )
    assert got._fields == wrt
    assert got.bias == "gradient of bias"
    (call,) = launched
    given = {"do": do, "q": q, "k": k, "v": v, "o": o, "lse": lse, "bias": bias}
    given["k_lengths"] = lengths
    assert call.arrays.keys() == given.keys()
    assert all(call.arrays[name] is x for name, x in given.items())
    assert call.out == (dk, None, None)
    assert call.workspace is workspace
    assert (call.problem.wrt, call.problem.deterministic) == (wrt, False)
    assert (call.problem.forward.module, call.problem.forward.right) == ("cupy", 0)
    assert call.problem.dlse is None
    attention_backward(do, q, k, v, o, lse, dlse=lse)
    assert launched[1].arrays["dlse"] is lse
    assert launched[1].out == (None,) * 3
    assert launched[1].workspace is None


def test_vjp_of_cupy_arrays(launched, cupy):
    q, k, v = qkv()
    out, pullback = attention_vjp(q, k, v, scale=0.5)
    assert len(cupy.calls) == 1
    assert pullback(out).v == "gradient of v"
    (call,) = launched
    assert call.arrays["o"] is out
    assert call.arrays["lse"].shape == q.shape[:-1]
    assert call.problem.forward.scale == 0.5


def test_workspace_of_a_call(launched):
    x = ((2, 4, 6, 8), "float16")
    bias = ((6, 1), "float32")
    assert workspace_size(x, x, x, wrt=("q", "bias"), bias=bias, causal=True) == 1234
    q, k, v = (on_gpu(dtype="float16", index=1) for _ in range(3))
    assert workspace_size(q, k, v) == 1234
    stood_for, real = (call.problem for call in launched)
    assert stood_for.wrt == ("q", "bias")
    assert (stood_for.forward.dtype, stood_for.forward.right) == ("float16", 0)
    assert stood_for.forward.lse.dtype == "float32"
    assert (stood_for.forward.device, real.forward.device) == (0, 1)


SMALL = {
    "mask": ((6, 6), "bool"),
    "bias": ((6, 6), "float32"),
    "alibi_slopes": ((4,), "float32"),
    "sinks": ((4,), "float32"),
    "q_lengths": ((2,), "int32"),
    "k_lengths": ((2,), "int32"),
}


@pytest.mark.parametrize("name", ["do", "q", "k", "v", "o", "lse", "dlse", "out", *SMALL_ARRAYS])
def test_a_workspace_shares_nothing(launched, name):
    arrays = {x: on_gpu() for x in ("do", "q", "k", "v", "o")}
    arrays |= {x: on_gpu((2, 4, 6)) for x in ("lse", "dlse")} | {"out": on_gpu()}
    arrays |= {x: on_gpu(*kind) for x, kind in SMALL.items()}
    host = arrays[name].host
    where = host.__array_interface__["data"][0]
    # The last bytes before the array's end, from the multiple of 16 below.
    at = where + (host.nbytes - 1) // 16 * 16
    raw = np.ndarray(16, np.uint8, host.base, at - host.base.__array_interface__["data"][0])
    call = dict(arrays)
    positional = [call.pop(x) for x in ("do", "q", "k", "v", "o", "lse")]
    call["out"] = (call["out"],)
    label = "the v array in out" if name == "out" else name
    with pytest.raises(ValueError, match=rf"workspace shares memory with {label}"):
        attention_backward(*positional, wrt=("v",), workspace=FakeArray(raw, 0), **call)
    assert not launched
    attention_backward(*positional, wrt=("v",), workspace=on_gpu((16,), "uint8"), **call)
    assert len(launched) == 1


def test_workspaces_of_cupy(launched):
    q, k, v = qkv()
    arrays = (on_gpu(), q, k, v, on_gpu(), on_gpu(q.shape[:-1]))
    strided = FakeArray(on_gpu((64,), "uint8").host[::2], 0)
    for workspace, error, words in (
        (on_gpu((64,), "uint8", shift=8), ValueError, "multiple of 16"),
        (strided, ValueError, "must be contiguous"),
        (on_gpu((4, 16), "uint8"), ValueError, "one axis"),
        (on_gpu((64,), "int8"), TypeError, "uint8"),
        (on_gpu((64,), "uint8", index=1), ValueError, "workspace on device 1"),
        (np.zeros(64, np.uint8), TypeError, "do is a cupy array and workspace a numpy array"),
    ):
        with pytest.raises(error, match=words):
            attention_backward(*arrays, workspace=workspace)
    assert not launched


def test_mixtures_are_refused(launched):
    q, k, v = qkv()
    do, o, lse = on_gpu(), on_gpu(), on_gpu(q.shape[:-1])
    with pytest.raises(TypeError, match="attention_backward: do is a numpy array and q a cupy"):
        attention_backward(do.host, q, k, v, o, lse)
    with pytest.raises(ValueError, match=r"out\[0\] on device 1"):
        attention_backward(do, q, k, v, o, lse, wrt=("q",), out=(on_gpu(index=1),))
    with pytest.raises(ValueError, match="lse on device 1"):
        attention_backward(do, q, k, v, o, on_gpu(q.shape[:-1], index=1))
    assert not launched


def test_numpy_arrays_never_load_the_kernels(monkeypatch):
    monkeypatch.setitem(sys.modules, LAUNCH, None)
    x = ones(3, 4)
    out, pullback = attention_vjp(x, x, x)
    assert pullback(out).q.shape == (3, 4)
    assert workspace_size(x, x, x) == 0
