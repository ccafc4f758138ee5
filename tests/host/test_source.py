"""The text that NVRTC compiles: flattened once, line numbers kept, constants of the kind alone."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cupy_flash.arrays import describe, planned, to_dtype
from cupy_flash.device import assumed
from cupy_flash.options import check_options
from cupy_flash.problem import make_problem
from cupy_flash.select import choose
from cupy_flash.source import INTEGER_TYPES, flatten, root, source, wrapper
from problems import DTYPES
from strategies import cases

FAMILIES = ("naive", "simt")
VARIANTS = {}
ENTRIES = tuple(f"forward_{family}.cuh" for family in FAMILIES)


def variant_of(q, k=None, v=None, dtypes=("float32",) * 3, arch=90, **options):
    k = q if k is None else k
    v = k if v is None else v
    infos = (planned(s, to_dtype(t)) for s, t in zip((q, k, v), dtypes, strict=True))
    return choose(make_problem(*infos, check_options(**options)), assumed(arch)).variant


@pytest.fixture
def folder(tmp_path):
    files = {
        "kernel.cuh": '#pragma once\n\n#include "a.cuh"\n  #include "deep/b.cuh"\nint kernel;\n',
        "a.cuh": '#pragma once\n#include "deep/b.cuh"\nint a;',
        "deep/b.cuh": "// b\n#pragma once\nint b;\n",
    }
    (tmp_path / "deep").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_includes_are_put_in_place_once_and_in_order(folder):
    text = flatten("kernel.cuh", folder)
    assert re.findall(r"^int (\w+);$", text, re.MULTILINE) == ["b", "a", "kernel"]
    assert "#include" not in text
    assert "#pragma once" not in text


def located(text):
    """Yield (file, line, content) of each line as a compiler numbers it."""
    name, number = None, 0
    for line in text.splitlines():
        directive = re.fullmatch(r'#line (\d+) "(.+)"', line)
        if directive:
            number, name = int(directive[1]), directive[2]
        else:
            yield name, number, line
            number += 1


@pytest.mark.parametrize("name", ENTRIES)
def test_every_line_keeps_its_place(name):
    found = {(file, number): line for file, number, line in located(flatten(name))}
    files = {file for file, _ in found}
    assert {name, "params.cuh", "ptx/memory.cuh"} <= files
    for file in files:
        for number, line in enumerate((root() / file).read_text().splitlines(), 1):
            if line.startswith(("#include", "#pragma once")):
                assert found.get((file, number), "") == ""
            else:
                assert found[file, number] == line


@pytest.mark.parametrize("name", ENTRIES)
def test_the_text_needs_no_other_file_and_is_ascii(name):
    text = flatten(name)
    assert "#include" not in text
    assert text.isascii()
    assert text.endswith("\n")


def test_a_changed_header_changes_the_text(folder):
    before = flatten("kernel.cuh", folder)
    (folder / "deep/b.cuh").write_text("#pragma once\nint other;\n")
    assert flatten("kernel.cuh", folder) != before


@pytest.mark.parametrize("family", FAMILIES)
def test_the_wrapper_holds_the_constants(family):
    variant = variant_of(
        (2, 4, 9, 40),
        (2, 2, 9, 40),
        (2, 2, 9, 100),
        ("float16", "float32", "float64"),
        kernel=family,
        causal=True,
        k_lengths=planned((2,), np.dtype(np.int64)),
        softcap=30.0,
        mask=planned((9, 9), np.dtype(bool)),
        bias=planned((9,), np.dtype(np.uint16)),
        alibi_slopes=planned((4,), np.dtype(np.float16)),
    )
    text = wrapper(variant)
    for line in (
        "using QType = Float16;",
        "using KType = float;",
        "using VType = double;",
        "using OType = double;",
        "using Accumulate = double;",
        "using QLengths = NoLengths;",
        "using KLengths = long long;",
        "using Bias = unsigned short;",
        "using Slopes = Float16;",
        "using Sinks = NoSinks;",
        "static constexpr bool kLeft = false;",
        "static constexpr bool kRight = true;",
        "static constexpr bool kMask = true;",
        "static constexpr bool kMaskRows = true;",
        "static constexpr bool kBiasRows = false;",
        "static constexpr bool kSoftcap = true;",
        "static constexpr bool kOffsetFromLengths = true;",
        f"static constexpr int kBlockM = {variant.tile.block_m};",
        f"static constexpr int kHeadDim = {64 if family == 'simt' else 0};",
        f"static constexpr int kHeadDimV = {128 if family == 'simt' else 0};",
        f"static constexpr int kSharedMemory = {variant.shared_memory};",
        f"__launch_bounds__({variant.tile.threads}, {variant.tile.blocks})",
        f"cupy_flash_forward_{family}(const __grid_constant__ Params params) {{",
        f"forward_{family}<Config>(params);",
    ):
        assert line in text
    assert text.count('extern "C"') == 1
    assert source(variant) == flatten(f"forward_{family}.cuh") + text


def random_problem(rng, top):
    """Draw a float32 problem of one kind; everything else about it is random."""
    batch = tuple(rng.integers(1, 70, rng.integers(1, 6)))
    kv_heads = int(rng.integers(1, 9))
    heads = kv_heads * int(rng.integers(1, 9))
    d, p = (int(rng.integers(top // 2 + 1, top + 1)) for _ in range(2))
    m, n = (int(rng.integers(2, 1 << rng.integers(2, 20))) for _ in range(2))
    infos = [
        planned((*map(int, batch), h, rows, columns), to_dtype("float32"))
        for h, rows, columns in ((heads, m, d), (kv_heads, n, d), (kv_heads, n, p))
    ]
    infos = [
        dataclasses.replace(
            info, strides=tuple(4 * int(s) for s in rng.integers(-99, 999, info.ndim))
        )
        for info in infos
    ]
    rows_and_keys = (*infos[0].shape[:-2], m, n)
    bias = dataclasses.replace(
        planned(rows_and_keys, to_dtype("float16")),
        strides=tuple(2 * int(s) for s in rng.integers(1, 999, len(rows_and_keys))),
    )
    return infos, {
        "window": (int(rng.integers(0, n)), int(rng.integers(0, n))),
        "softcap": float(rng.exponential()),
        "bias": bias,
        "sinks": planned(bias.shape[int(rng.integers(0, 3)) : -2], to_dtype("float32")),
        "scale": float(rng.standard_normal()),
        "offset": int(rng.integers(-m, n + 1)) if rng.integers(2) else None,
    }


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("top", [64, 128, 256])
def test_shapes_strides_and_scales_are_not_in_the_text(family, top):
    rng = np.random.default_rng(top)
    texts = set()
    for _ in range(200):
        infos, options = random_problem(rng, top)
        problem = make_problem(*infos, check_options(**options, kernel=family))
        texts.add(source(choose(problem, assumed(90)).variant))
    # The design allows three; a constant that creeps in makes hundreds.
    assert len(texts) <= 3


KINDS = {
    "plain": {},
    "causal": {"causal": True},
    "q_lengths": {"q_lengths": planned((2,), np.dtype(np.int32))},
    "k_lengths": {"k_lengths": planned((2,), np.dtype(np.int32))},
    "int64": {"k_lengths": planned((2,), np.dtype(np.int64))},
    "given offset": {"k_lengths": planned((2,), np.dtype(np.int32)), "offset": 0, "causal": True},
    "own offset": {"k_lengths": planned((2,), np.dtype(np.int32)), "causal": True},
    "left": {"window": (3, None)},
    "window": {"window": (3, 2)},
    "softcap": {"softcap": 30.0},
    "mask": {"mask": planned((9, 9), np.dtype(bool))},
    "mask of keys": {"mask": planned((9,), np.dtype(bool))},
    "mask and bias": {"mask": planned((9,), np.dtype(bool)), "bias": planned((9,), np.dtype(int))},
    "slopes of float64": {"alibi_slopes": planned((3,), np.dtype(np.float64))},
    "sinks of float64": {"sinks": planned((3,), np.dtype(np.float64))},
    "bias, slopes": {name: planned((), np.dtype(np.float32)) for name in ("bias", "alibi_slopes")},
}


for _dtype in (*DTYPES, *INTEGER_TYPES):
    KINDS[f"{_dtype} bias"] = {"bias": planned((9, 9), to_dtype(_dtype))}
    KINDS[f"{_dtype} bias of keys"] = {"bias": planned((2, 1, 1, 9), to_dtype(_dtype))}


@pytest.mark.parametrize("family", FAMILIES)
def test_each_kind_has_its_own_text(family):
    shape = (2, 3, 9, 40)
    texts = {kind: source(variant_of(shape, kernel=family, **o)) for kind, o in KINDS.items()}
    texts |= {
        str(dtypes): source(variant_of(shape, kernel=family, dtypes=dtypes))
        for dtypes in (
            *((name,) * 3 for name in DTYPES if name != "float32"),
            ("float16", "float32", "float32"),
            ("float32", "float16", "float32"),
        )
    }
    if family == "simt":
        texts |= {str(d): source(variant_of((*shape[:-1], d), kernel=family)) for d in (65, 129)}
        texts["p"] = source(variant_of(shape, shape, (*shape[:-1], 200), kernel=family))
    assert len(set(texts.values())) == len(texts)


def on_gpu(x):
    """Describe a NumPy array as if it lay on a GPU."""
    return dataclasses.replace(describe("x", x), module="cupy", device=0)


@settings(max_examples=200)
@given(st.sampled_from(tuple(DTYPES)).flatmap(lambda name: cases(name, dims=(32, 300))))
def test_one_text_is_one_variant(case):
    arrays = case.build()
    infos = [on_gpu(x.numpy()) for x in arrays.inputs().values()]
    options = {
        name: on_gpu(x) if isinstance(x, np.ndarray) else x for name, x in arrays.options().items()
    }
    problem = make_problem(*infos, check_options(**options))
    variant = choose(problem, assumed(90)).variant
    assert VARIANTS.setdefault(wrapper(variant), variant) is variant
