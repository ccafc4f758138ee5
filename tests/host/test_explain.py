"""`explain`: the kernel, why, and what it costs, for arrays and for shapes alone."""

from __future__ import annotations

import doctest
import sys
import types
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from cupy_flash import attention, device, explain, explanation
from problems import DTYPES

PAIR = ((2, 8, 1024, 64), "float32")


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    """Explain as a laptop would, on a machine with a GPU too."""
    monkeypatch.setattr(device, "gpu_is_available", lambda: False)


def test_numpy_arrays_take_the_blocked_path():
    x = np.ones((2, 3, 4, 5), np.float16)
    told = explain(x, x, x, causal=True)
    assert (told.kernel, told.variant, told.workspace) == ("blocked", None, 0)
    assert "blocked NumPy path" in str(told)
    assert "sums in float32, results rounded once to float16" in told.accuracy
    assert told.problem.right == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("arch", [75, 80, 86, 89, 90, 100, 120])
def test_shapes_stand_for_contiguous_gpu_arrays(dtype, arch):
    pair = ((2, 8, 1024, 64), dtype)
    told = explain(pair, pair, pair, arch=arch)
    tensor_cores = arch >= 80 and dtype in ("float16", "bfloat16")
    assert told.kernel == ("sm80" if tensor_cores else "simt")
    assert told.variant.arch == arch
    assert told.variant.shared_memory <= device.assumed(arch).shared_memory
    assert (told.problem.module, told.problem.dtype) == ("cupy", dtype)
    assert told.problem.q.batch == (8 * 1024 * 64,)
    assert f"sm_{arch}" in str(told)


@pytest.mark.parametrize(
    ("arch", "d", "units"),
    [(80, 64, "tensor cores"), (90, 128, "tensor cores"), (86, 64, "fused"), (90, 256, "fused")],
)
def test_float64_says_by_what_it_is_multiplied(arch, d, units):
    pair = ((2, 100, d), "float64")
    told = explain(pair, pair, pair, arch=arch)
    assert any(units in note for note in told.notes)
    slower = any("slower than unfused" in note for note in told.notes)
    assert slower == (units == "fused")


def test_without_a_gpu_pairs_are_explained_for_90():
    assert explain(PAIR, PAIR, PAIR).variant.arch == 90


def test_cupy_arrays_are_described_and_not_read(monkeypatch):
    class FakeArray:
        shape, strides, dtype = (4, 64), (256, 4), np.dtype(np.float32)
        data = SimpleNamespace(device_id=0, ptr=1 << 30)

    cupy = types.ModuleType("cupy")
    cupy.ndarray = FakeArray
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    x = FakeArray()
    told = explain(x, x, x, kernel="naive", arch=80)
    assert (told.kernel, told.problem.device) == ("naive", 0)


@pytest.mark.parametrize(
    "dtype", [np.float32, np.dtype(np.float32), "float32", "f4", float, ml_dtypes.bfloat16]
)
def test_dtypes_are_what_numpy_takes(dtype):
    pair = ((8, 64), dtype)
    told = explain(pair, pair, pair)
    assert told.problem.dtype == np.dtype(dtype).name


def test_the_text_is_readable():
    k = ((2, 2, 700, 64), "float32")
    told = explain(PAIR, k, k, causal=True, arch=90)
    lines = str(told).splitlines()
    assert lines[0] == (
        "attention: batch (2,), 8 heads on 2 key heads, m=1024 n=700 d=64 p=64, float32"
    )
    assert [line.split(":")[0] for line in lines] == [
        *("attention", "kernel", "tile", "options", "why", "why", "why", "workspace", "accuracy"),
        "note",
    ]
    assert lines[3] == "options:   row i sees keys up to i - 324"
    assert f"{told.variant.shared_memory:,} bytes of shared memory" in lines[2]
    assert all(len(line) <= 110 for line in lines)


def test_reasons_of_a_slower_kernel():
    wide = ((8, 300), "float16")
    told = explain(wide, wide, wide)
    assert told.kernel == "naive"
    assert "simt: no, d is 300, above 256; p is 300, above 256" in told.reasons


@pytest.mark.parametrize(
    ("arch", "d", "units", "slower"),
    [
        (90, 64, "in six bfloat16 products", False),
        (90, 256, "by fused multiply-adds", True),
        (80, 64, "by fused multiply-adds", False),
        (86, 64, "by fused multiply-adds", False),
        (86, 256, "by fused multiply-adds", True),
    ],
)
def test_float32_says_by_what_it_is_multiplied(arch, d, units, slower):
    pair = ((2, 100, d), "float32")
    told = explain(pair, pair, pair, arch=arch)
    assert units in told.notes[0]
    assert any("slower than unfused" in note for note in told.notes) == slower


@pytest.mark.parametrize(
    ("arch", "dtype", "says"),
    [
        (90, "float32", "factors of products have 16 bits"),
        (80, "float32", "permits less, and changes nothing here"),
        (86, "float32", "permits less, and changes nothing here"),
        (90, "float64", "permits less, and changes nothing here"),
        (90, "float16", "permits less, and changes nothing here"),
    ],
)
def test_tf32_says_what_it_changes(arch, dtype, says):
    pair = (PAIR[0], dtype)
    told = explain(pair, pair, pair, arch=arch, precision="tf32")
    highest = explain(pair, pair, pair, arch=arch, precision="highest")
    assert says in told.accuracy
    assert told.accuracy.startswith(highest.accuracy)
    assert "tf32" not in highest.accuracy
    assert (told.variant == highest.variant) == ("changes nothing" in says)


def test_tf32_changes_nothing_for_numpy_arrays():
    x = np.ones((3, 5), np.float32)
    assert "changes nothing here" in explain(x, x, x, precision="tf32").accuracy


def test_a_forced_kernel_that_cannot():
    with pytest.raises(ValueError, match="kernel='sm90' can't compute this call"):
        explain(PAIR, PAIR, PAIR, kernel="sm90")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"scale": "1"}, TypeError),
        ({"causal": 1}, TypeError),
        ({"softcap": 0.0}, ValueError),
        ({"kernel": "cuda"}, ValueError),
        ({"k_lengths": [3]}, TypeError),
        ({"window": (3, -1)}, ValueError),
        ({"mask": np.ones((4, 3), bool)}, ValueError),
        ({"sinks": np.ones(4, int)}, TypeError),
    ],
)
def test_errors_are_those_of_attention(options, error):
    x = np.ones((4, 5), np.float32)
    with pytest.raises(error) as from_attention:
        attention(x, x, x, **options)
    with pytest.raises(error) as from_explain:
        explain(x, x, x, **options)
    assert str(from_attention.value) == str(from_explain.value)


def test_unknown_arch_and_options():
    with pytest.raises(ValueError, match="arch is 91; known are"):
        explain(PAIR, PAIR, PAIR, arch=91)
    with pytest.raises(TypeError, match="is_causal"):
        explain(PAIR, PAIR, PAIR, is_causal=True)


@pytest.mark.parametrize(
    "bad",
    [
        ((2, 8, 64), "flaot32"),
        ((2, 8, 64), None),
        ((2, 8, 64), 32),
        ((2, -8, 64), "float32"),
        ((2, 8.0, 64), "float32"),
        ((2, "8", 64), "float32"),
        (("2, 8"), "float32"),
        (64, "float32"),
        ("float32", (2, 8, 64)),
        (2, 8, 64),
        ((2, 8, 64),),
        ((2, 8, 64), "float32", 0),
    ],
)
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_pairs_that_are_none(name, bad):
    call = dict.fromkeys(("q", "k", "v"), ((2, 8, 64), "float32")) | {name: bad}
    with pytest.raises((TypeError, ValueError)) as caught:
        explain(*call.values())
    message = str(caught.value)
    assert f"{name} " in message
    assert "(shape, dtype)" in message or "allowed are float16" in message or "axes" in message


def words_of(**options):
    """Return what the line of options says, None if there is no such line."""
    x = ((2, 4, 5, 8), "float32")
    k = ((2, 4, 9, 8), "float32")
    lines = str(explain(x, k, k, **options)).splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line[:8] == "options:"), None)


def test_options_are_told_as_they_were_understood():
    lengths = ((2,), "int32")
    assert words_of() is None
    assert words_of(offset=3, scale=2.0, window=(None, None), return_lse=True) is None
    assert words_of(window=(3, 2)) == "row i sees keys from i + 1 to i + 6"
    assert words_of(window=(4, None)) == "row i sees keys from i on"
    assert words_of(window=(9, None), causal=True) == "row i sees keys from i - 5 to i + 4"
    assert words_of(window=(None, 1), offset=0) == "row i sees keys up to i + 1"
    assert words_of(causal=True, k_lengths=lengths) == (
        "row i sees keys up to i + k_length - q_length; k_lengths in int32"
    )
    assert words_of(softcap=30) == "softcap 30"
    assert words_of(mask=((5, 9), "bool"), bias=((9,), "int8")) == (
        "mask; bias in int8, the same for all rows"
    )
    assert words_of(alibi_slopes=((4,), "float16"), sinks=((), "float64")) == (
        "alibi_slopes in float16; sinks in float64"
    )


@pytest.mark.parametrize("name", ["mask", "bias", "alibi_slopes", "sinks", "k_lengths"])
def test_pairs_stand_for_the_arrays_of_options(name):
    dtype = {"mask": "bool", "k_lengths": "int32"}.get(name, "float32")
    operand = getattr(explain(PAIR, PAIR, PAIR, **{name: ((), dtype)}).problem, name)
    assert operand.dtype == dtype
    with pytest.raises(TypeError, match=f"explain: {name} is .*; allowed are an array and a pair"):
        explain(PAIR, PAIR, PAIR, **{name: ((-1,), dtype)})
    with pytest.raises(ValueError, match=f"{name} has shape .*must broadcast"):
        explain(PAIR, PAIR, PAIR, **{name: ((1023,), dtype)})


@pytest.mark.parametrize("bad", [((2, 8), "int32"), ((2, 8), "complex64"), ((8,), "float32")])
def test_pairs_are_checked_like_arrays(bad):
    with pytest.raises((TypeError, ValueError), match=r"q has (dtype|shape)"):
        explain(bad, bad, bad)


def test_its_docstring_runs():
    assert doctest.testmod(explanation).attempted >= 3
    assert doctest.testmod(explanation).failed == 0


def test_the_rounding_of_p_is_told():
    x = ((4, 64, 64), "float16")
    assert "P to float16" in explain(x, x, x, kernel="sm80", arch=90).accuracy
    assert "P to" not in explain(x, x, x, kernel="simt", arch=90).accuracy
