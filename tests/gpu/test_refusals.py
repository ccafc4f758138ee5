"""What is refused on a GPU is refused before anything is launched or written."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cupy_flash
from cupy_flash import launch, plan
from gpu_runtime import every_fast_kernel, every_kernel

cupy = pytest.importorskip("cupy")

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
BATCH, HEADS, M, N, D = 2, 4, 6, 6, 8
SENTINEL = 7.0


@pytest.fixture
def launches(monkeypatch: Any) -> list[Any]:
    """Record every kernel that a call is about to launch."""
    # A warm call has its kernel, and looks none up.
    plan.forget()
    found: list[Any] = []
    find = launch.kernel

    def recorded(*args: Any) -> Any:
        found.append(args)
        return find(*args)

    monkeypatch.setattr(launch, "kernel", recorded)
    return found


def drawn(rows: int, dtype: str = "float32") -> Any:
    rng = np.random.default_rng(rows)
    return cupy.asarray(rng.standard_normal((BATCH, HEADS, rows, D)).astype(dtype))


def test_the_counter_counts(launches: list[Any]) -> None:
    cupy_flash.attention(drawn(M), drawn(N), drawn(N))
    assert len(launches) == 1


def on_host(x: Any) -> Any:
    return x.get()


def ints(*values: int, dtype: str = "int32") -> Any:
    return cupy.asarray(np.array(values, dtype))


# name: (arguments that replace or join q, k, v; the exception; what it must say)
Refusal = tuple[Callable[[], dict[str, Any]], type[Exception], str]
REFUSALS: dict[str, Refusal] = {
    "q on the host": (lambda: {"q": on_host(drawn(M))}, TypeError, r"cupy\.asarray\(q\)"),
    "k on the host": (lambda: {"k": on_host(drawn(N))}, TypeError, r"cupy\.asarray\(k\)"),
    "v on the host": (lambda: {"v": on_host(drawn(N))}, TypeError, r"cupy\.asarray\(v\)"),
    "k_lengths on the host": (
        lambda: {"k_lengths": np.array([1, 2])},
        TypeError,
        r"cupy\.asarray\(k_lengths\)",
    ),
    "out on the host": (
        lambda: {"out": np.empty((BATCH, HEADS, M, D), np.float32)},
        TypeError,
        r"cupy\.asarray\(out\)",
    ),
    "a list": (lambda: {"v": [[1.0]]}, TypeError, "v is a builtins.list"),
    "scale on the GPU": (lambda: {"scale": drawn(M)[0, 0, 0, 0]}, TypeError, r"float\(scale\)"),
    "causal on the GPU": (lambda: {"causal": ints(1)[0] > 0}, TypeError, "causal"),
    "offset on the GPU": (lambda: {"offset": ints(1)[0]}, TypeError, "offset"),
    "float lengths": (lambda: {"k_lengths": drawn(N)[:, 0, 0, 0]}, TypeError, "astype"),
    "short lengths": (
        lambda: {"k_lengths": ints(1, 2, dtype="int16")},
        TypeError,
        "int32 and int64",
    ),
    "lengths of another batch": (lambda: {"q_lengths": ints(1, 2, 3)}, ValueError, "batch axes"),
    "mask on the host": (
        lambda: {"mask": np.ones(N, bool)},
        TypeError,
        r"cupy\.asarray\(mask\)",
    ),
    "mask of integers": (
        lambda: {"mask": ints(*[1] * N)},
        TypeError,
        r"mask has dtype int32.*mask\.astype\(bool\)",
    ),
    "mask of keys without its axes": (
        lambda: {"mask": cupy.asarray(np.ones((BATCH, N), bool))},
        ValueError,
        r"mask has shape \(2, 6\).*mask\[\.\.\., None, None, :\]",
    ),
    "complex bias": (
        lambda: {"bias": cupy.asarray(np.ones(N, np.complex64))},
        TypeError,
        r"bias has dtype complex64.*bias\.real",
    ),
    "bias of other rows": (lambda: {"bias": drawn(M + 1)}, ValueError, "bias has shape"),
    "slopes of integers": (lambda: {"alibi_slopes": ints(1, 2, 3, 4)}, TypeError, "astype"),
    "slopes of other heads": (
        lambda: {"alibi_slopes": cupy.asarray(np.ones(3))},
        ValueError,
        r"alibi_slopes has shape \(3,\).*leading axes \(2, 4\)",
    ),
    "sinks of a batch": (
        lambda: {"sinks": cupy.asarray(np.ones(BATCH))},
        ValueError,
        r"sinks\[\.\.\., None\]",
    ),
    "softcap on the GPU": (
        lambda: {"softcap": drawn(M)[0, 0, 0, 0]},
        TypeError,
        r"float\(softcap\)",
    ),
    "softcap of zero": (lambda: {"softcap": 0.0}, ValueError, "must be > 0"),
    "window of one bound": (lambda: {"window": 3}, TypeError, "pair"),
    "window on the GPU": (lambda: {"window": (ints(3)[0], 0)}, TypeError, "left bound"),
    "negative window": (lambda: {"window": (3, -1)}, ValueError, "right bound is -1"),
    "out of another shape": (lambda: {"out": drawn(M + 1)}, ValueError, r"must be \(2, 4, 6, 8\)"),
    "out of another dtype": (lambda: {"out": drawn(M, "float64")}, TypeError, "cast silently"),
    "broadcast out": (
        lambda: {"out": cupy.broadcast_to(drawn(M)[:, :1], (BATCH, HEADS, M, D))},
        ValueError,
        "share memory",
    ),
    "lse without return_lse": (
        lambda: {"out": (None, cupy.empty((BATCH, HEADS, M), "float32"))},
        ValueError,
        "return_lse",
    ),
    "lse of 16 bits": (
        lambda: {"out": (None, cupy.empty((BATCH, HEADS, M), "float16")), "return_lse": True},
        TypeError,
        "float32",
    ),
    "three outputs": (lambda: {"out": (None, None, None)}, ValueError, "tuple of 3"),
    "keys and values of different number": (lambda: {"v": drawn(N + 1)}, ValueError, "rows"),
    "heads that don't divide": (
        lambda: dict.fromkeys("kv", drawn(N)[:, :3]),
        ValueError,
        "multiple",
    ),
    "sm80": (lambda: {"kernel": "sm80"}, ValueError, "float16 and bfloat16, not float32.*Able are"),
    "sm90": (lambda: {"kernel": "sm90"}, ValueError, "doesn't have it yet.*Able are"),
    "an unknown kernel": (lambda: {"kernel": "fast"}, ValueError, "'naive', 'simt'"),
}
for _dtype in ("bool", "int8", "int32", "uint64", "complex64", "complex128"):
    for _name in ("q", "k", "v"):
        REFUSALS[f"{_name} of {_dtype}"] = (
            lambda name=_name, dtype=_dtype: {name: drawn(M, dtype)},
            TypeError,
            rf"{_name} has dtype {_dtype}.*{'view' if 'complex' in _dtype else 'astype'}",
        )


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_launch_and_write_nothing(name: str, launches: list[Any]) -> None:
    make, error, says = REFUSALS[name]
    out = cupy.full((BATCH, HEADS, M, D), SENTINEL, np.float32)
    options = {"q": drawn(M), "k": drawn(N), "v": drawn(N), "out": out} | make()
    given = options["out"]
    before = [(x, x.data.ptr, x.get().tobytes()) for x in arrays_of(options)]
    q, k, v = (options.pop(array) for array in "qkv")
    with pytest.raises(error, match=f"(?s)attention: .*{says}"):
        cupy_flash.attention(q, k, v, **options)
    assert not launches
    assert options["out"] is given
    for array, pointer, content in before:
        assert array.data.ptr == pointer
        assert array.get().tobytes() == content, "the refused call wrote to an array"


def arrays_of(options: dict[str, Any]) -> list[Any]:
    flat = [x for value in options.values() for x in (value if type(value) is tuple else (value,))]
    return [x for x in flat if isinstance(x, cupy.ndarray)]


@every_fast_kernel
def test_wide_heads_are_refused_with_the_reason(
    kernel: str, dtype: str, launches: list[Any]
) -> None:
    q, k, v = (cupy.zeros((M, 257), dtype) for _ in range(3))
    with pytest.raises(ValueError, match=r"d is 257, above 256; p is 257, above 256.*'naive'"):
        cupy_flash.attention(q, k, v, kernel=kernel)
    assert not launches


# The same numbers of elements: out overlaps an input in one element, in a row, or wholly.
OVERLAPS = {"all": 0, "all but a row": D, "one element": BATCH * HEADS * M * D - 1}


@pytest.mark.parametrize("shift", OVERLAPS)
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_out_may_not_share_an_element(name: str, shift: str, launches: list[Any]) -> None:
    size, step = BATCH * HEADS * M * D, OVERLAPS[shift]
    buffer = cupy.asarray(np.random.default_rng(0).standard_normal(size + step).astype("float32"))
    before = buffer.get()
    arrays = {"q": drawn(M), "k": drawn(N), "v": drawn(N)}
    arrays[name] = buffer[:size].reshape(BATCH, HEADS, M, D)
    out = buffer[step:].reshape(BATCH, HEADS, M, D)
    with pytest.raises(ValueError, match=f"out shares memory with {name}"):
        cupy_flash.attention(*arrays.values(), out=out)
    assert not launches
    assert (buffer.get() == before).all()


@pytest.mark.parametrize("name", ["mask", "bias", "alibi_slopes", "sinks", "k_lengths"])
def test_out_may_not_share_an_element_with_an_option(name: str, launches: list[Any]) -> None:
    shape, dtype = {
        "mask": ((M, N), "bool"),
        "bias": ((M, N), "float32"),
        "alibi_slopes": ((HEADS,), "float64"),
        "sinks": ((BATCH, HEADS), "float32"),
        "k_lengths": ((BATCH,), "int32"),
    }[name]
    out = cupy.full((BATCH, HEADS, M, D), SENTINEL, np.float32)
    option = cupy.ndarray(shape, dtype, out.data)
    with pytest.raises(ValueError, match=f"out shares memory with {name}"):
        cupy_flash.attention(drawn(M), drawn(N), drawn(N), out=out, **{name: option})
    assert not launches
    assert (out.get() == SENTINEL).all()


@every_kernel
def test_out_may_lie_between_the_elements_of_an_input(kernel: str, dtype: str) -> None:
    q, k, v = (drawn(rows, dtype) for rows in (M, N, N))
    want = cupy_flash.attention(q, k, v, kernel=kernel).get()
    # q's columns are the even ones, out's the odd ones.
    both = np.full((BATCH, HEADS, M, 2 * D), SENTINEL, dtype)
    both[..., ::2] = q.get()
    shared = cupy.asarray(both)
    cupy_flash.attention(shared[..., ::2], k, v, out=shared[..., 1::2], kernel=kernel)
    assert (shared.get()[..., ::2] == q.get()).all(), "q was overwritten"
    assert (shared.get()[..., 1::2] == want).all()


def test_q_k_and_v_may_be_one_array() -> None:
    x = drawn(N)
    want = cupy_flash.attention(x, x.copy(), x.copy())
    assert (cupy_flash.attention(x, x, x).get() == want.get()).all()


# Another library's array, once on the GPU and once through the way out that the error names.
OTHER_LIBRARY = """
import cupy, cupy_flash, numpy as np
from cupy_flash import launch
{make}
ours = [cupy.asarray(np.full((3, 4), i, np.float32)) for i in range(3)]
launched, find = [], launch.kernel
launch.kernel = lambda *args: launched.append(args) or find(*args)
for position in range(3):
    mixed = list(ours)
    mixed[position] = theirs[position]
    try:
        cupy_flash.attention(*mixed)
    except TypeError as error:
        name = "qkv"[position]
        assert f"cupy.from_dlpack({{name}})" in str(error), error
    else:
        raise AssertionError("a foreign array was accepted")
assert not launched, launched
out = cupy_flash.attention(*map(cupy.from_dlpack, theirs))
assert (out.get() == 2).all(), out
"""
MAKE = {
    "torch": "import torch\n"
    "theirs = [torch.full((3, 4), float(i), device='cuda') for i in range(3)]",
    "jax": "import jax\n"
    "gpu = jax.devices('gpu')[0]\n"
    "theirs = [jax.device_put(np.full((3, 4), i, np.float32), gpu) for i in range(3)]\n"
    "jax.block_until_ready(theirs)",
}


@pytest.mark.parametrize("library", MAKE)
def test_arrays_of_other_libraries_are_told_the_way(library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} isn't installed")
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    variables = {"PYTHONPATH": path, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    result = subprocess.run(
        [sys.executable, "-c", OTHER_LIBRARY.format(make=MAKE[library])],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **variables},
    )
    if "Unknown backend" in result.stderr or "not compiled with CUDA" in result.stderr:
        pytest.skip(f"{library} has no CUDA support here")
    assert result.returncode == 0, result.stderr
