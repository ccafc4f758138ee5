"""Arrays that can't be used are refused before anything is launched or written."""

from __future__ import annotations

import sys
import types
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from cupy_flash import attention, launch

SENTINEL = 7.0
SHAPES = {"q": (2, 3, 4, 5), "k": (2, 3, 6, 5), "v": (2, 3, 6, 7)}
OUT, LSE = (2, 3, 4, 7), (2, 3, 4)
NAMES = ("q", "k", "v")
# Of arrays beside q, k and v.
SMALL = {
    "mask": ((4, 6), np.bool_),
    "bias": ((3, 4, 6), np.float32),
    "alibi_slopes": ((3,), np.float32),
    "sinks": ((2, 3), np.float32),
    "q_lengths": ((2,), np.int32),
    "k_lengths": ((2,), np.int32),
}
RESULTS = {"out": (OUT, np.float32), "lse": (LSE, np.float32)}


def good(dtype=np.float32, **shapes):
    return {name: np.ones(shape, dtype) for name, shape in (SHAPES | shapes).items()}


def refuse(error, words, q, k, v, out=None, **options):
    """Demand an exception of exactly this type with all these words, and an untouched result."""
    out = np.full(OUT, SENTINEL, np.float32) if out is None else out
    targets = [x for x in (out if isinstance(out, tuple) else (out,)) if isinstance(x, np.ndarray)]
    before = [x.copy() for x in targets]
    with pytest.raises(error) as caught:
        attention(q, k, v, out=out, **options)
    assert caught.type is error
    for word in words:
        assert word in str(caught.value)
    for target, copy in zip(targets, before, strict=True):
        assert target.tobytes() == copy.tobytes(), "a refused call wrote its result"


class FakeArray:
    """What `describe` reads of a cupy.ndarray; there is no memory behind it."""

    def __init__(self, shape, dtype=np.float32, device=0, pointer=1 << 40):
        like = np.empty(shape, dtype)
        self.shape, self.strides, self.dtype = like.shape, like.strides, like.dtype
        self._c_contiguous = True
        self.data = SimpleNamespace(device_id=device, ptr=pointer)


@pytest.fixture
def fake_cupy(monkeypatch):
    """Install a cupy whose arrays are FakeArray; a launch is a failure."""
    cupy = types.ModuleType("cupy")
    cupy.ndarray = FakeArray
    monkeypatch.setitem(sys.modules, "cupy", cupy)

    def forward(*_):
        raise AssertionError("a refused call was launched")

    monkeypatch.setattr(launch, "forward", forward)
    return {name: FakeArray(shape) for name, shape in SHAPES.items()}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(), (1,), (5,), (0,), (6,)])
def test_fewer_than_two_axes(name, shape):
    words = (f"{name} has shape {shape}", "at least two axes", f"{name}[None]")
    refuse(ValueError, words, **good(**{name: shape}))


@pytest.mark.parametrize(("d", "k_d"), [(5, 4), (4, 5), (1, 5), (5, 1), (0, 1), (64, 128)])
def test_columns_of_q_and_k_differ(d, k_d):
    q, k = (2, 3, 4, d), (2, 3, 6, k_d)
    words = (f"q has {d} columns {q} and k has {k_d} {k}", "must be equal")
    refuse(ValueError, words, **good(q=q, k=k))


@pytest.mark.parametrize(("n", "v_n"), [(6, 5), (5, 6), (1, 6), (6, 1), (0, 6), (6, 0)])
def test_rows_of_k_and_v_differ(n, v_n):
    k, v = (2, 3, n, 5), (2, 3, v_n, 7)
    words = (f"k has {n} rows {k} and v has {v_n} {v}", "must be equal")
    refuse(ValueError, words, **good(k=k, v=v))
    refuse(ValueError, ("Is v transposed?", "one row per key"), **good(v=(2, 3, 7, 6)))


@pytest.mark.parametrize(
    ("heads", "kv_heads"), [(3, 2), (33, 2), (2, 4), (5, 4), (4, 0), (8, 3), (7, 14)]
)
def test_query_heads_are_no_multiple_of_key_heads(heads, kv_heads):
    shapes = {"q": (2, heads, 4, 5), "k": (2, kv_heads, 6, 5), "v": (2, kv_heads, 6, 7)}
    words = (f"k has {kv_heads} heads and q has {heads}", "axis -3", "multiple", str(shapes["q"]))
    refuse(ValueError, words, **good(**shapes))


@pytest.mark.parametrize(("k_heads", "v_heads"), [(2, 3), (3, 2), (3, 6), (6, 3), (0, 3)])
def test_k_and_v_have_different_heads(k_heads, v_heads):
    shapes = {"q": (2, 6, 4, 5), "k": (2, k_heads, 6, 5), "v": (2, v_heads, 6, 7)}
    words = (f"k has {k_heads} heads and v has {v_heads}", "must be equal, or one of them 1")
    refuse(ValueError, words, **good(**shapes))


@pytest.mark.parametrize(
    "sizes", [(2, 3, 3), (3, 2, 2), (4, 2, 2), (2, 4, 1), (1, 2, 3), (0, 2, 2), (6, 1, 4)]
)
def test_axis_minus_3_of_three_dimensions_is_no_head_axis(sizes):
    q, k, v = sizes
    shapes = {"q": (q, 4, 5), "k": (k, 6, 5), "v": (v, 6, 7)}
    words = ("axis -3", "doesn't broadcast", "q[None]", "k[None]", "v[None]", str(shapes["k"]))
    refuse(ValueError, words, **good(**shapes))


@pytest.mark.parametrize(
    "batches",
    [
        ((2,), (3,), (3,)),
        ((2,), (2,), (3,)),
        ((2, 3), (3, 2), (1,)),
        ((0,), (2,), (2,)),
        ((4, 1), (5, 1), (1, 1)),
        ((2, 2, 2), (2, 3, 2), ()),
    ],
)
def test_leading_axes_do_not_broadcast(batches):
    shapes = {name: (*batch, *SHAPES[name][1:]) for name, batch in zip(NAMES, batches, strict=True)}
    words = ("leading axes", "don't broadcast", "numpy.matmul", str(shapes["q"]), str(shapes["v"]))
    refuse(ValueError, words, **good(**shapes))


BAD_DTYPES = {
    "int8": "astype(numpy.float32)",
    "int32": "astype(numpy.float32)",
    "uint64": "astype(numpy.float32)",
    "bool": "astype(numpy.float32)",
    "complex64": ".real.dtype)",
    "complex128": "take the real view of twice the width",
    "clongdouble": ".view(complex) on the result",
    "longdouble": "astype(numpy.float64)",
    "object": "astype(numpy.float32)",
    "U3": "convert it",
    "S3": "convert it",
    "M8[s]": "convert it",
    "f4,f4": "convert it",
    ">f2": "byte order is not the machine's",
    ">f4": ".astype(float32)",
    ">f8": ".astype(float64)",
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("dtype", "way"), BAD_DTYPES.items())
def test_other_element_types(name, dtype, way):
    arrays = good() | {name: np.zeros(SHAPES[name], dtype)}
    came = f"{name} has dtype {np.dtype(dtype)}"
    refuse(TypeError, (came, "float16, bfloat16, float32, float64", way), **arrays)


def test_the_real_view_of_the_complex_message_works():
    rng = np.random.default_rng(0)
    shapes = (4, 3), (5, 3), (5, 2)
    q, k, v = (rng.standard_normal(s) + 1j * rng.standard_normal(s) for s in shapes)
    out = attention(*(x.view(x.real.dtype) for x in (q, k, v))).view(complex)
    scores = (q @ k.conj().T).real / np.sqrt(2 * 3)
    weights = np.exp(scores)
    np.testing.assert_allclose(out, weights @ v / weights.sum(1, keepdims=True), rtol=1e-13)


def test_floats_of_ml_dtypes_are_not_converted_silently():
    arrays = good() | {"k": np.zeros(SHAPES["k"], ml_dtypes.float8_e4m3fn)}
    refuse(TypeError, ("k has dtype float8_e4m3fn", "allowed are"), **arrays)
    arrays = good(np.float16) | {"v": np.ones(SHAPES["v"], ml_dtypes.bfloat16)}
    refuse(TypeError, ("v is bfloat16", "no common dtype", ".astype"), **arrays)


NOT_ARRAYS = {
    "list": [[1.0, 2.0]],
    "tuple": ((1.0, 2.0),),
    "float": 1.0,
    "int": 3,
    "None": None,
    "str": "q",
    "numpy.float32": np.float32(1),
    "memoryview": memoryview(b"abcd"),
    "object": object(),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("kind", "value"), NOT_ARRAYS.items())
def test_no_arrays(name, kind, value):
    words = (f"{name} is a", kind.replace("None", "NoneType"), "numpy.asarray or cupy.asarray")
    refuse(TypeError, words, **good() | {name: value})


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.parametrize("name", NAMES)
def test_subclasses_with_another_meaning(name):
    masked = np.ma.ones(SHAPES[name], np.float32)
    words = (f"{name} is a masked array", ".filled(0)", "k_lengths")
    refuse(TypeError, words, **good() | {name: masked})
    x = np.ones(SHAPES[name][-2:], np.float32)
    words = (f"{name} is a matrix", f"numpy.asarray({name})")
    refuse(TypeError, words, **good() | {name: np.asmatrix(x)})
    refuse(TypeError, (f"{name} is a recarray",), **good() | {name: x.view(np.recarray)})


class OnGpu:
    @property
    def __cuda_array_interface__(self):
        return {"shape": (4, 5), "typestr": "<f4", "data": (0, False), "version": 3}


class OnGpuWithGradient:
    """A PyTorch tensor that needs a gradient refuses the interface with a RuntimeError."""

    @property
    def __cuda_array_interface__(self):
        raise RuntimeError("Can't get __cuda_array_interface__ on Variable that requires grad.")

    def __dlpack_device__(self):
        return 2, 0


class Dlpack:
    def __init__(self, device):
        self.device = device

    def __dlpack_device__(self):
        return self.device, 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [OnGpu(), OnGpuWithGradient(), Dlpack(2), Dlpack(13)])
def test_gpu_arrays_of_other_libraries(name, value, fake_cupy):
    words = (f"{name} is a", type(value).__name__, f"cupy.from_dlpack({name})", "copies nothing")
    refuse(TypeError, words, **fake_cupy | {name: value})


@pytest.mark.parametrize("device", [1, 3, 10])
def test_arrays_of_other_libraries_elsewhere(device):
    words = ("k is a", "Dlpack", "numpy.asarray or cupy.asarray")
    refuse(TypeError, words, **good() | {"k": Dlpack(device)})


class NoCupy:
    """A finder that knows no cupy, as where it isn't installed."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "cupy":
            raise ModuleNotFoundError(name)


@pytest.mark.parametrize("blocked", ["not installed", "import blocked"])
def test_gpu_arrays_without_cupy_say_what_to_install(monkeypatch, blocked):
    monkeypatch.setattr(sys, "meta_path", [NoCupy, *sys.meta_path])
    if blocked == "not installed":
        monkeypatch.delitem(sys.modules, "cupy", raising=False)
    else:
        monkeypatch.setitem(sys.modules, "cupy", None)
    words = ("pip install 'cupy-flash[cuda12x]'", "pip install 'cupy-flash[cuda13x]'")
    refuse(ImportError, words, **good() | {"v": OnGpu()})


@pytest.mark.parametrize("name", [*NAMES, *SMALL, *RESULTS])
def test_numpy_among_cupy_arrays(name, fake_cupy):
    shape, dtype = (SMALL | RESULTS).get(name) or (SHAPES[name], np.float32)
    host = np.full(shape, SENTINEL, dtype)
    call = fake_cupy | {name: host}
    if name in ("out", "lse"):
        call["out"] = (call.pop("out", None), call.pop("lse", None))
        call["return_lse"] = True
    words = (f"{name} a numpy array" if name != "q" else "q is a numpy array", "silently")
    refuse(TypeError, (*words, f"cupy.asarray({name})"), **call)


@pytest.mark.parametrize("name", ["k", "v", *SMALL, *RESULTS])
def test_arrays_on_two_devices(name, fake_cupy):
    shape, dtype = (SMALL | RESULTS).get(name) or (SHAPES[name], np.float32)
    call = fake_cupy | {name: FakeArray(shape, dtype, device=1)}
    call["out"] = (call.pop("out", None), call.pop("lse", None))
    words = ("q is on device 0", f"{name} on device 1", "with cupy.cuda.Device(0)")
    refuse(ValueError, words, **call, return_lse=True)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_memory_at_odd_addresses(name, dtype):
    size = np.dtype(dtype).itemsize
    count = int(np.prod(SHAPES[name]))
    odd = np.frombuffer(bytes(count * size + 1), np.uint8, offset=1).view(dtype)
    words = (f"{name}'s elements", f"multiples of their {size} bytes", f"pass {name}.copy()")
    refuse(ValueError, words, **good(dtype) | {name: odd.reshape(SHAPES[name])})


@pytest.mark.parametrize("name", [name for name, (_, dtype) in SMALL.items() if dtype != np.bool_])
def test_small_arrays_at_odd_addresses(name):
    shape, dtype = SMALL[name]
    size = np.dtype(dtype).itemsize
    odd = np.frombuffer(bytes(int(np.prod(shape)) * size + 1), np.uint8, offset=1).view(dtype)
    words = (f"{name}'s elements", f"multiples of their {size} bytes", f"pass {name}.copy()")
    refuse(ValueError, words, **good(), **{name: odd.reshape(shape)})


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize(("kind", "value"), NOT_ARRAYS.items())
def test_small_arrays_that_are_none(name, kind, value):
    if value is not None:
        refuse(TypeError, (f"{name} is a", kind), **good(), **{name: value})


@pytest.mark.parametrize("name", SMALL)
def test_small_arrays_of_other_libraries(name, fake_cupy):
    words = (f"{name} is a", "OnGpu", f"cupy.from_dlpack({name})")
    refuse(TypeError, words, **fake_cupy | {name: OnGpu()})


@pytest.mark.parametrize("axis", range(4))
def test_strides_between_the_elements(axis):
    records = np.zeros(SHAPES["k"], np.dtype([("x", np.float32), ("flag", np.uint8)]))
    refuse(ValueError, ("k's elements", "strides", "k.copy()"), **good() | {"k": records["x"]})
    strides = [4 * s for s in (90, 30, 5, 1)]
    strides[axis] += 2
    crooked = as_strided(np.zeros(2000, np.float32), SHAPES["k"], strides)
    refuse(ValueError, ("k's elements", str(tuple(strides))), **good() | {"k": crooked})


@pytest.mark.parametrize("shape", [(2, 3, 4, 8), (3, 4, 7), (1, 3, 4, 7), (2, 3, 7, 4), (168,), ()])
def test_out_of_another_shape(shape):
    out = np.full(shape, SENTINEL, np.float32)
    refuse(ValueError, (f"out has shape {shape}", f"must be {OUT}"), **good(), out=out)


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3), (2, 3, 4, 1), (1, 3, 4), ()])
def test_lse_of_another_shape(shape):
    out = np.full(OUT, SENTINEL, np.float32), np.full(shape, SENTINEL, np.float32)
    words = (f"lse array in out has shape {shape}", f"must be {LSE}")
    refuse(ValueError, words, **good(), out=out, return_lse=True)


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "complex64", ">f4", "bool"])
def test_out_and_lse_of_another_dtype(dtype):
    out, lse = np.ones(OUT, dtype), np.ones(LSE, dtype)
    words = (f"has dtype {np.dtype(dtype).name}", "the result is float32")
    refuse(TypeError, ("out " + words[0], words[1]), **good(), out=out)
    refuse(TypeError, ("the lse array", *words), **good(), out=(None, lse), return_lse=True)


@pytest.mark.parametrize("out", [[0.0], 1.0, "out", np.float32(1), np.ma.ones(OUT, np.float32)])
def test_out_that_is_no_array(out):
    refuse(TypeError, ("out is a",), **good(), out=out)
    refuse(TypeError, ("lse is a",), **good(), out=(None, out), return_lse=True)


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5])
def test_out_tuples_of_another_length(length):
    words = (f"tuple of {length}", "(out, lse)", "None allowed")
    refuse(ValueError, words, **good(), out=(None,) * length)


def test_lse_without_return_lse():
    words = ("lse", "return_lse is False", "return_lse=True")
    refuse(ValueError, words, **good(), out=(None, np.full(LSE, SENTINEL, np.float32)))


@pytest.mark.parametrize("read_only", ["out", "lse"])
def test_a_read_only_result_is_refused_by_name(read_only):
    out = {name: np.full(x, SENTINEL, np.float32) for name, x in (("out", OUT), ("lse", LSE))}
    out[read_only].flags.writeable = False
    words = (read_only, "read-only")
    refuse(ValueError, words, **good(), out=tuple(out.values()), return_lse=True)
