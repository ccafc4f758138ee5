"""Backward calls that can't be computed are refused before anything is launched or written."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from cupy_flash import attention, attention_backward, attention_vjp, workspace_size

SHAPES = {
    "do": (2, 3, 4, 7),
    "q": (2, 3, 4, 5),
    "k": (2, 3, 6, 5),
    "v": (2, 3, 6, 7),
    "o": (2, 3, 4, 7),
    "lse": (2, 3, 4),
}
WRT = ("q", "k", "v", "bias", "scale")
SENTINEL = 7.0


def ones(shape, dtype=np.float32):
    return np.ones(shape, dtype)


def refuse(error, words, **given):
    """Demand an exception of exactly this type with all these words, and untouched results."""
    call = {name: ones(shape) for name, shape in SHAPES.items()} | given
    arrays = [call.pop(name) for name in SHAPES]
    wrt = call.setdefault("wrt", ("q", "k", "v"))
    if "out" not in call and type(wrt) is tuple and all(x in ("q", "k", "v") for x in wrt):
        call["out"] = tuple(np.full(SHAPES[name], SENTINEL, np.float32) for name in wrt)
    out = call.get("out")
    targets = [x for x in (out if type(out) is tuple else (out,)) if isinstance(x, np.ndarray)]
    before = [x.tobytes() for x in targets]
    with pytest.raises(error) as caught:
        attention_backward(*arrays, **call)
    assert caught.type is error
    message = str(caught.value)
    assert message.startswith("attention_backward: "), message
    for word in words:
        assert word in message
    assert [x.tobytes() for x in targets] == before, "a refused call wrote its result"


@pytest.mark.parametrize(
    ("error", "words", "wrong"),
    [
        (TypeError, ("wrt is 'q'", "tuple", "wrt=('q',)"), {"wrt": "q"}),
        (TypeError, ("wrt is ['q']", "wrt=(name,)"), {"wrt": ["q"]}),
        (TypeError, ("wrt is None",), {"wrt": None}),
        (ValueError, ("wrt is empty", "'alibi_slopes'"), {"wrt": ()}),
        (ValueError, ("wrt names 'mask'", "allowed are 'q'"), {"wrt": ("q", "mask")}),
        (ValueError, ("wrt names ['q']",), {"wrt": (["q"],)}),
        (ValueError, ("wrt names 'k' 2 times",), {"wrt": ("k", "v", "k")}),
        (ValueError, ("'bias', but bias is None", "pass bias="), {"wrt": ("bias",)}),
        (ValueError, ("'sinks', but sinks is None",), {"wrt": ("q", "sinks")}),
        (ValueError, ("'alibi_slopes', but",), {"wrt": ("alibi_slopes",)}),
        (
            TypeError,
            ("bias has dtype int32", "bias.astype(numpy.float32)"),
            {"wrt": ("bias",), "bias": ones((4, 6), np.int32)},
        ),
        (TypeError, ("deterministic is 1", "True or False"), {"deterministic": 1}),
        (TypeError, ("deterministic is None",), {"deterministic": None}),
    ],
)
def test_names_and_switches(error, words, wrong):
    refuse(error, words, **wrong)


def test_a_bias_of_integers_that_wrt_does_not_name_is_fine():
    arrays = [ones(shape) for shape in SHAPES.values()]
    assert attention_backward(*arrays, bias=ones((4, 6), np.int32)).q.shape == SHAPES["q"]


@pytest.mark.parametrize(
    ("error", "words", "wrong"),
    [
        (ValueError, ("do has shape (3, 4, 7)", "(2, 3, 4, 7)", "out"), {"do": ones((3, 4, 7))}),
        (ValueError, ("do has shape ()", "broadcast_to(do, (2, 3, 4, 7))"), {"do": ones(())}),
        (
            TypeError,
            ("do has dtype float64", "float32", "'float32'"),
            {"do": ones(SHAPES["do"], float)},
        ),
        (TypeError, ("do has dtype bfloat16",), {"do": ones(SHAPES["do"], ml_dtypes.bfloat16)}),
        (TypeError, ("do has dtype int64",), {"do": ones(SHAPES["do"], np.int64)}),
        (TypeError, ("do is a builtins.list", "numpy.asarray"), {"do": [1.0]}),
        (TypeError, ("do is a builtins.NoneType",), {"do": None}),
        (TypeError, ("o is a masked array", "filled"), {"o": np.ma.ones(SHAPES["o"])}),
        (ValueError, ("o has shape (2, 3, 7, 4)", "the shape of out"), {"o": ones((2, 3, 7, 4))}),
        (
            TypeError,
            ("o has dtype float16", "it must be float32"),
            {"o": ones(SHAPES["o"], np.float16)},
        ),
        (ValueError, ("lse has shape (2, 3, 4, 1)", "(2, 3, 4)"), {"lse": ones((2, 3, 4, 1))}),
        (TypeError, ("lse has dtype float64", "the dtype of lse"), {"lse": ones((2, 3, 4), float)}),
        (ValueError, ("dlse has shape (2, 3)", "the shape of lse"), {"dlse": ones((2, 3))}),
        (TypeError, ("dlse has dtype float16", "float32"), {"dlse": ones((2, 3, 4), np.float16)}),
        (TypeError, ("dlse is a builtins.float",), {"dlse": 1.0}),
        (ValueError, ("q has 4 columns", "k has 5"), {"q": ones((2, 3, 4, 4))}),
        (TypeError, ("q has dtype int64", "astype"), {"q": ones(SHAPES["q"], np.int64)}),
        (
            TypeError,
            ("float16 and bfloat16",),
            {"q": ones(SHAPES["q"], np.float16), "k": ones(SHAPES["k"], ml_dtypes.bfloat16)},
        ),
        (
            ValueError,
            ("k has 2 heads and q has 3",),
            {"k": ones((2, 2, 6, 5)), "v": ones((2, 2, 6, 7))},
        ),
        (ValueError, ("softcap is -1", "> 0"), {"softcap": -1}),
        (TypeError, ("causal is 1",), {"causal": 1}),
        (ValueError, ("mask has shape (5, 6)",), {"mask": ones((5, 6), bool)}),
        (TypeError, ("mask has dtype float32",), {"mask": ones((4, 6))}),
        (ValueError, ("precision is 'high'",), {"precision": "high"}),
        (ValueError, ("kernel='naive' needs CuPy arrays",), {"kernel": "naive"}),
        (ValueError, ("kernel is 'fast'",), {"kernel": "fast"}),
        (ValueError, ("k_lengths has values from 9 to 9",), {"k_lengths": np.full(2, 9)}),
    ],
)
def test_arrays_and_options(error, words, wrong):
    refuse(error, words, **wrong)


def test_do_must_have_the_promoted_dtype():
    wrong = {"q": ones(SHAPES["q"], np.float16)}
    arrays = [wrong.get(name, ones(shape)) for name, shape in SHAPES.items()]
    assert attention_backward(*arrays).q.dtype == np.float16
    refuse(
        TypeError,
        ("do has dtype float16", "it must be float32"),
        do=ones(SHAPES["do"], np.float16),
        out=None,
        **wrong,
    )


def test_elements_must_be_aligned():
    raw = np.zeros(4 * 168 + 1, np.uint8)[1:].view(np.float32).reshape(SHAPES["do"])
    refuse(ValueError, ("do's elements don't lie at multiples", "do.copy()"), do=raw)
    flat = np.zeros(4 * 120 + 1, np.uint8)[1:].view(np.float32).reshape(SHAPES["q"])
    refuse(ValueError, ("out[1]'s elements", "out[1].copy()"), wrt=("k", "q"), out=(None, flat))


K = SHAPES["k"]


def read_only():
    x = ones(K)
    x.flags.writeable = False
    return x


@pytest.mark.parametrize(
    ("error", "words", "out"),
    [
        (TypeError, ("out is a ndarray", "a tuple", "('k',)", "out=(array,)"), ones(K)),
        (TypeError, ("out is a list",), [ones(K)]),
        (ValueError, ("out is a tuple of 0", "('k',)"), ()),
        (ValueError, ("out is a tuple of 2", "None"), (ones(K), None)),
        (TypeError, ("out[0] is a builtins.float",), (1.0,)),
        (ValueError, ("the k array in out has shape (6, 5)", str(K)), (ones((6, 5)),)),
        (TypeError, ("the k array in out has dtype float64", "float32"), (ones(K, float),)),
        (ValueError, ("the k array in out is read-only",), (read_only(),)),
        (
            ValueError,
            ("the k array in out has elements that share memory",),
            (as_strided(np.zeros(200, np.float32), K, (0, 120, 20, 4)),),
        ),
    ],
)
def test_out(error, words, out):
    refuse(error, words, wrt=("k",), out=out)


@pytest.mark.parametrize("name", ["do", "q", "k", "v", "o", "lse", "dlse", "bias", "sinks"])
def test_out_may_not_share_an_element_with_an_input(name):
    shape = (SHAPES | {"dlse": (2, 3, 4), "bias": (4, 6), "sinks": (3,)})[name]
    size = int(np.prod(shape))
    buffer = np.full(180 + 2 * size, SENTINEL, np.float32)
    out = buffer[:180].reshape(K)
    last = buffer[179 : 179 + size].reshape(shape)
    refuse(
        ValueError,
        (f"the k array in out shares memory with {name}",),
        wrt=("k",),
        out=(out,),
        **{name: last},
    )
    beside = buffer[180 : 180 + size].reshape(shape)
    beside[...] = 1
    call = {n: ones(s) for n, s in SHAPES.items()} | {name: beside}
    arrays = [call.pop(n) for n in SHAPES]
    attention_backward(*arrays, wrt=("k",), out=(out,), **call)
    assert (beside == 1).all()
    assert np.isfinite(out).all()


def test_outs_may_not_share_an_element():
    buffer = np.full(400, SENTINEL, np.float32)
    dq, dk = buffer[:120].reshape(SHAPES["q"]), buffer[119:299].reshape(K)
    refuse(
        ValueError,
        ("the q array in out and the k array in out share memory",),
        wrt=("q", "k"),
        out=(dq, dk),
    )
    refuse(ValueError, ("share memory",), wrt=("k", "q"), out=(dk, dq))


@pytest.mark.parametrize(
    ("error", "words", "workspace"),
    [
        (TypeError, ("workspace has dtype float32", "uint8"), np.zeros(8, np.float32)),
        (ValueError, ("workspace has shape (2, 4)", "one axis"), np.zeros((2, 4), np.uint8)),
        (TypeError, ("workspace is a builtins.int", "numpy.asarray"), 100),
    ],
)
def test_workspaces(error, words, workspace):
    refuse(error, words, workspace=workspace)


@pytest.mark.parametrize("call", [attention_vjp, workspace_size])
@pytest.mark.parametrize(
    ("error", "words", "wrong"),
    [
        (ValueError, ("q has shape (5,)", "q[None]"), {"q": ones(5)}),
        (ValueError, ("softcap is 0",), {"softcap": 0}),
        (TypeError, ("sinks has dtype int64",), {"sinks": ones(3, np.int64)}),
        (TypeError, ("k is a builtins.list",), {"k": []}),
        (ValueError, ("v has 5",), {"v": ones((2, 3, 5, 7))}),
    ],
)
def test_errors_begin_with_the_name_of_the_call(call, error, words, wrong):
    given = {name: ones(SHAPES[name]) for name in "qkv"} | wrong
    arrays = [given.pop(name) for name in "qkv"]
    with pytest.raises(error) as caught:
        call(*arrays, **given)
    assert str(caught.value).startswith(f"{call.__name__}: ")
    assert caught.type is error
    for word in words:
        assert word in str(caught.value)


def test_errors_of_workspace_size_alone():
    x = ones((4, 5))
    with pytest.raises(ValueError, match="workspace_size: wrt names 'bias', but bias is None"):
        workspace_size(x, x, x, wrt=("bias",))
    with pytest.raises(TypeError, match=r"workspace_size: q is \(3, 'x'\); allowed are an array"):
        workspace_size((3, "x"), x, x)


def test_errors_of_pullback():
    out, pullback = attention_vjp(*(ones(SHAPES[name]) for name in "qkv"))
    with pytest.raises(ValueError, match=r"^pullback: do has shape \(7,\)"):
        pullback(ones(7))
    with pytest.raises(ValueError, match=r"^pullback: wrt names 'bias'"):
        pullback(out, wrt=("bias",))
    with pytest.raises(TypeError, match=r"^pullback: dlse has dtype float64"):
        pullback(out, ones((2, 3, 4), float))


def test_errors_of_attention_keep_their_name():
    with pytest.raises(ValueError, match=r"^attention: q has 4 columns"):
        attention(ones((3, 4)), ones((3, 5)), ones((3, 5)))
