"""A pairwise cover of the kernels' variants and architectures, and what NVRTC says of each."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator
from typing import Any

from cupy_flash.arrays import planned, to_dtype
from cupy_flash.compile import OPTIONS
from cupy_flash.device import assumed
from cupy_flash.options import check_options
from cupy_flash.problem import make_problem
from cupy_flash.select import HEAD_DIM_BUCKETS, Variant, choose
from cupy_flash.source import source

AXES: dict[str, tuple[Any, ...]] = {
    "kernel": ("simt", "naive"),
    "dtypes": (
        ("float16", "float16", "float16"),
        ("bfloat16", "bfloat16", "bfloat16"),
        ("float32", "float32", "float32"),
        ("float64", "float64", "float64"),
        ("float16", "float32", "float64"),
    ),
    "d": HEAD_DIM_BUCKETS,
    "p": HEAD_DIM_BUCKETS,
    "causal": (False, True),
    "q_lengths": (None, "int32", "int64"),
    "k_lengths": (None, "int32", "int64"),
    "offset": (None, 0),
    "arch": (75, 80, 86, 89, 90, 100, 120),
}
# What CuPy adds (compiler.py), without the include folders: the kernels include nothing.
CUPY_OPTIONS = ("-ftz=true", "--device-as-default-execution-space")


def cover() -> list[dict[str, Any]]:
    """Return settings in which every pair of values of two axes occurs: greedy, deterministic."""
    names = list(AXES)
    missing = {
        ((a, x), (b, y))
        for (a, b) in itertools.combinations(range(len(names)), 2)
        for x in range(len(AXES[names[a]]))
        for y in range(len(AXES[names[b]]))
    }
    rows = []
    while missing:
        row = dict(min(missing))
        for axis in range(len(names)):
            if axis in row:
                continue
            gains = []
            for value in range(len(AXES[names[axis]])):
                pairs = {
                    tuple(sorted(((axis, value), (other, there)))) for other, there in row.items()
                }
                gains.append(len(pairs & missing))
            row[axis] = gains.index(max(gains))
        missing -= {tuple(pair) for pair in itertools.combinations(sorted(row.items()), 2)}
        rows.append({names[axis]: AXES[names[axis]][value] for axis, value in row.items()})
    return rows


def variant(row: dict[str, Any]) -> Variant:
    """Return the variant that a call with these settings gets."""
    q, k, v = row["dtypes"]
    lengths = {
        name: dataclasses.replace(planned((2,), to_dtype(row[name])), pointer=8)
        for name in ("q_lengths", "k_lengths")
        if row[name]
    }
    options = check_options(
        causal=row["causal"], offset=row["offset"], kernel=row["kernel"], **lengths
    )
    problem = make_problem(
        planned((2, 4, 100, row["d"]), to_dtype(q)),
        planned((2, 2, 100, row["d"]), to_dtype(k)),
        planned((2, 2, 100, row["p"]), to_dtype(v)),
        options,
    )
    return choose(problem, assumed(row["arch"])).variant


def variants() -> Iterator[Variant]:
    """Return the cover's variants and, on sm_90, each dtype and head dim, causal and not."""
    seen = set()
    rows = cover()
    for dtype, d, causal in itertools.product(AXES["dtypes"][:4], AXES["d"], AXES["causal"]):
        plain = {"kernel": "simt", "dtypes": dtype, "d": d, "p": d, "causal": causal}
        rows.append(plain | {"q_lengths": None, "k_lengths": None, "offset": 0, "arch": 90})
    for row in rows:
        found = variant(row)
        if found not in seen:
            seen.add(found)
            yield found


def name(variant: Variant) -> str:
    dtypes = "-".join(dict.fromkeys((variant.q, variant.k, variant.v)))
    lengths = f"{variant.q_lengths or 'no'}/{variant.k_lengths or 'no'}"
    flags = ["causal"] * variant.causal + ["offset-from-lengths"] * variant.offset_from_lengths
    return " ".join(
        [
            f"sm_{variant.arch}",
            variant.family,
            dtypes,
            f"{variant.head_dim}/{variant.head_dim_v}",
            f"lengths:{lengths}",
            *flags,
        ]
    )


@dataclasses.dataclass(frozen=True)
class Report:
    """What ptxas says of one kernel."""

    registers: int
    stack: int
    spills: int
    shared: int
    log: str


def compile_report(variant: Variant) -> Report:
    from cupy.cuda import nvrtc

    program = nvrtc.createProgram(source(variant), f"{variant.entry}.cu", (), ())
    options = (*OPTIONS, *CUPY_OPTIONS, "--ptxas-options=-v", f"-arch=sm_{variant.arch}")
    try:
        nvrtc.compileProgram(program, options)
    except nvrtc.NVRTCError as error:
        raise AssertionError(f"{variant}: {error}\n{nvrtc.getProgramLog(program)}") from None
    log: str = nvrtc.getProgramLog(program)
    nvrtc.destroyProgram(program)
    (registers,) = re.findall(r"Used (\d+) registers", log)
    ((stack, stores, loads),) = re.findall(
        r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log
    )
    return Report(int(registers), int(stack), int(stores) + int(loads), variant.shared_memory, log)
