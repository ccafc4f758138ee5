"""The kernels that are compiled, family by family, and what a compiler says of each."""

from __future__ import annotations

import dataclasses
import itertools
import re

import backward_variants
from cover import Axes, Row, cover
from cupy_flash.arrays import planned, to_dtype
from cupy_flash.backward.variant import BackwardVariant, StatisticsVariant, SumVariant
from cupy_flash.compile import OPTIONS
from cupy_flash.device import assumed
from cupy_flash.options import check_options
from cupy_flash.problem import make_problem
from cupy_flash.select import HEAD_DIM_BUCKETS, SPLIT_HEAD_DIMS, choose
from cupy_flash.softmaxes.problem import make_softmax_problem
from cupy_flash.softmaxes.select import ROW_TILES, STAGES, SoftmaxVariant, choose_softmax
from cupy_flash.source import ELEMENT_TYPES, AnyVariant, source, target
from cupy_flash.variant import Variant
from nvrtc import Compiler

# Which keys a row sees by its place, as the window that says so.
BOUNDS = {"none": None, "left": (3, None), "right": (None, 3), "both": (3, 3)}
FLAGS: Axes = {
    "bounds": tuple(BOUNDS),
    "q_lengths": (None, "int32", "int64"),
    "k_lengths": (None, "int32", "int64"),
    "offset": (None, 0),
    "mask": (None, "keys", "pairs"),
    # Elements of every size, floats and integers with and without a sign.
    "bias": (None, *ELEMENT_TYPES, "int8", "uint8", "int16", "int32", "uint64"),
    "bias_along": ("keys", "pairs"),
    "softcap": (None, 30.0),
    "alibi": (None, "float32", "float64"),
    "sinks": (None, "float32", "bfloat16"),
}
# Options of every class, in fewer dtypes.
FEW_FLAGS: Axes = {
    **FLAGS,
    "q_lengths": (None, "int32"),
    "k_lengths": (None, "int64"),
    "bias": (None, "float16", "float32", "float64"),
    "alibi": (None, "float32"),
    "sinks": (None, "float32"),
}
DTYPES = (
    ("float16", "float16", "float16"),
    ("bfloat16", "bfloat16", "bfloat16"),
    ("float32", "float32", "float32"),
    ("float64", "float64", "float64"),
    ("float16", "float32", "float64"),
)
ARCHS = (75, 80, 86, 89, 90, 100, 120)
ROWS, KEYS = 100, 90
# Shapes of a mask and a bias, by what they differ along.
PAIRS = {"keys": (KEYS,), "pairs": (ROWS, KEYS)}

# Axes of each family's cover. d and p are given where the kernel's text depends on them, unit where
# it depends on how rows are aligned.
FAMILIES: dict[str, Axes] = {
    "naive": {"dtypes": DTYPES, **FLAGS, "arch": ARCHS},
    "simt": {
        "dtypes": DTYPES,
        "d": HEAD_DIM_BUCKETS["simt"],
        "p": HEAD_DIM_BUCKETS["simt"],
        **FLAGS,
        "arch": ARCHS,
    },
    # Where warps multiply float64 by mma.sync, and where warpgroups multiply float32.
    "simt matrix": {
        "dtypes": DTYPES[3:4],
        "d": HEAD_DIM_BUCKETS["simt"],
        "p": HEAD_DIM_BUCKETS["simt"],
        **FEW_FLAGS,
        "arch": (80, 90),
    },
    "simt groups": {
        "dtypes": DTYPES[2:3],
        "d": SPLIT_HEAD_DIMS,
        "p": SPLIT_HEAD_DIMS,
        **FEW_FLAGS,
        "precision": (None, "tf32"),
        "arch": (90,),
    },
    "sm80": {
        "dtypes": DTYPES[:2],
        "d": HEAD_DIM_BUCKETS["sm80"],
        "p": HEAD_DIM_BUCKETS["sm80"],
        "unit": (16, 4, 2),
        **FLAGS,
        "arch": ARCHS[1:],
    },
    "sm90": {
        "dtypes": DTYPES[:2],
        "d": HEAD_DIM_BUCKETS["sm90"],
        "p": HEAD_DIM_BUCKETS["sm90"],
        "unit": (16, 4, 2),
        **FLAGS,
        "mask": (None,),
        "bias": (None,),
        "bias_along": ("keys",),
        "arch": (90,),
    },
}
# A softmax has a kernel for each length of a row up to one that fits in registers, and one for each
# pass over longer rows.
SOFTMAX_FAMILIES: dict[str, Axes] = {
    "softmax of rows": {
        "dtype": tuple(ELEMENT_TYPES),
        "row_bytes": tuple(tile.capacity for tile in ROW_TILES["float32"]),
        "method": tuple(STAGES),
        "aligned": (True, False),
        "arch": ARCHS,
    },
    "softmax of parts": {
        "dtype": tuple(ELEMENT_TYPES),
        "stage": tuple((method, stage) for method, stages in STAGES.items() for stage in stages),
        "aligned": (True, False),
        "arch": ARCHS,
    },
}
# What CuPy adds (compiler.py), without the include folders: the kernels include nothing.
CUPY_OPTIONS = ("-ftz=true", "--device-as-default-execution-space")


# What calls have most often beside causal, each alone, and many of them together.
USUAL_OPTIONS: tuple[Row, ...] = (
    {"bias": "float16", "bias_along": "pairs"},
    {"bias": "float32", "bias_along": "pairs"},
    {"bias": "float16", "bias_along": "keys"},
    {"mask": "pairs"},
    {"mask": "keys"},
    {"softcap": 30.0},
    {"bounds": "right", "alibi": "float32"},
    {"bounds": "both"},
    {
        "mask": "pairs",
        "bias": "float16",
        "bias_along": "pairs",
        "softcap": 30.0,
        "sinks": "float32",
    },
)


def rows(family: str) -> list[Row]:
    """Return a family's cover; it begins with the kernels of usual calls on sm_90.

    Those of every dtype that comes to this family, d = p, causal or not, without options: on one
    GPU, their figures can be compared. On the tensor cores, whose tiles take all registers, those
    with usual options too.
    """
    axes = FAMILIES[family]
    if "d" not in axes:
        return cover(axes)
    plain = {axis: None for axis in FLAGS} | {"bounds": "none", "offset": 0, "bias_along": "keys"}
    plain |= {"arch": 90, "precision": None}
    if "unit" in axes:
        plain["unit"] = 16
    plain = {axis: value for axis, value in plain.items() if axis in axes}
    dtypes = [
        dtypes for dtypes in axes["dtypes"] if family in ("sm80", "sm90") or dtypes in DTYPES[2:4]
    ]
    first = itertools.product(dtypes, axes["d"], ("none", "right"))
    usual = [plain | {"dtypes": x, "d": d, "p": d, "bounds": b} for x, d, b in first]
    if "precision" in axes:
        more = itertools.product(usual, axes["precision"], axes["arch"], axes["p"])
        usual = [
            row | {"precision": precision, "arch": arch, "p": p}
            for row, precision, arch, p in more
            if p == row["d"] or family == "simt groups"
        ]
    if family == "simt groups":
        all_at_once = itertools.product(axes["dtypes"], axes["d"], axes["p"])
        usual += [
            plain | USUAL_OPTIONS[-1] | {"dtypes": x, "d": d, "p": p} for x, d, p in all_at_once
        ]
    if family == "sm80":
        both = itertools.product(USUAL_OPTIONS, (64, 128))
        usual += [plain | {"dtypes": dtypes[0], "d": d, "p": d} | more for more, d in both]
    return cover(axes, usual)


def variant(family: str, row: Row) -> Variant:
    """Return the variant that a call with these settings gets."""
    dtypes = map(to_dtype, row["dtypes"])
    d, p = row.get("d", 64), row.get("p", 64)
    # So many columns less, and rows of 16-bit elements don't begin at multiples of a larger unit.
    odd = {16: 0, 4: 2, 2: 1}[row.get("unit", 16)]
    given = {
        "q_lengths": ((2,), row["q_lengths"]),
        "k_lengths": ((2,), row["k_lengths"]),
        "mask": (PAIRS[row["mask"] or "keys"], row["mask"] and "bool"),
        "bias": (PAIRS[row["bias_along"]], row["bias"]),
        "alibi_slopes": ((4,), row["alibi"]),
        "sinks": ((4,), row["sinks"]),
    }
    arrays = {
        name: dataclasses.replace(planned(shape, to_dtype(dtype)), pointer=8)
        for name, (shape, dtype) in given.items()
        if dtype
    }
    options = check_options(
        window=BOUNDS[row["bounds"]],
        offset=row["offset"],
        softcap=row["softcap"],
        precision=row.get("precision"),
        kernel=family.split()[0],
        **arrays,
    )
    shapes = ((2, 4, ROWS, d - odd), (2, 2, KEYS, d - odd), (2, 2, KEYS, p - odd))
    problem = make_problem(*map(planned, shapes, dtypes), options)
    return choose(problem, assumed(row["arch"])).variant


def softmax_variant(row: Row) -> SoftmaxVariant:
    """Return the variant that a softmax with these settings gets, in one of its passes."""
    dtype = to_dtype(row["dtype"])
    method, stage = row.get("stage") or (row["method"], "row")
    n = row.get("row_bytes", 1 << 20) // dtype.itemsize
    x = planned((3, n), dtype)
    if not row["aligned"]:
        x = dataclasses.replace(x, pointer=dtype.itemsize)
    choice = choose_softmax(make_softmax_problem(x, -1, method), assumed(row["arch"]))
    passes = {variant.stage: variant for variant in choice.variants}
    # Rows of 64 KiB fit in registers only as float32.
    return passes.get(stage) or choice.variants[-1]


# Of the backward kernels the second NVRTC compiles one of so many: they are as many as the others.
SHARE = {"13.5": 9}


def variants(version: str | None = None) -> list[AnyVariant]:
    """Return the variants of all covers, each once: rows that differ in what no text shows meet.

    With a version of NVRTC those that it compiles.
    """
    found: list[AnyVariant] = [variant(family, row) for family in FAMILIES for row in rows(family)]
    for axes in SOFTMAX_FAMILIES.values():
        found += map(softmax_variant, cover(axes))
    found += backward_variants.variants()[:: SHARE.get(version or "", 1)]
    return list(dict.fromkeys(found))


def name(variant: AnyVariant) -> str:
    if isinstance(variant, BackwardVariant):
        return f"{backward_variants.name(variant)}: {name(variant.forward)}"
    if isinstance(variant, StatisticsVariant | SumVariant):
        return str(variant)
    if isinstance(variant, SoftmaxVariant):
        tile = f"{variant.tile.lanes}x{variant.tile.packs}"
        flags = ["aligned"] * variant.aligned
        return " ".join([f"sm_{variant.arch}", variant.function, variant.dtype, tile, *flags])
    dtypes = "-".join(dict.fromkeys((variant.q, variant.k, variant.v)))
    lengths = f"{variant.q_lengths or 'no'}/{variant.k_lengths or 'no'}"
    head_dims = [f"{variant.head_dim}/{variant.head_dim_v}"] * bool(variant.head_dim)
    flags = [
        flag
        for flag, present in (
            ("left", variant.left),
            ("right", variant.right),
            ("offset-from-lengths", variant.offset_from_lengths),
            (f"mask:{variant.mask}", variant.mask),
            (f"bias:{variant.bias}/{variant.bias_along}", variant.bias),
            ("softcap", variant.softcap),
            (f"alibi:{variant.alibi}", variant.alibi),
            (f"sinks:{variant.sinks}", variant.sinks),
            (f"unit:{variant.unit}", variant.unit),
            ("tf32", variant.tf32),
        )
        if present
    ]
    return " ".join(
        [f"sm_{variant.arch}", variant.family, dtypes, *head_dims, f"lengths:{lengths}", *flags]
    )


@dataclasses.dataclass(frozen=True)
class Report:
    """What ptxas says of one kernel; sizes in bytes."""

    registers: int
    stack: int
    spills: int
    shared: int
    log: str


def compile_report(variant: AnyVariant, compiler: Compiler) -> Report:
    """Compile a variant and read ptxas' log; raise nvrtc.CompilationError if it doesn't compile."""
    options = (*OPTIONS, *CUPY_OPTIONS, "--ptxas-options=-v", f"-arch=sm_{target(variant)}")
    log = compiler.compile(source(variant), f"{variant.entry}.cu", options)
    (registers,) = re.findall(r"Used (\d+) registers", log)
    ((stack, stores, loads),) = re.findall(
        r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log
    )
    # ptxas knows what is declared with a size; the rest is given at the launch.
    declared = sum(map(int, re.findall(r"(\d+) bytes smem", log)))
    return Report(
        registers=int(registers),
        stack=int(stack),
        spills=int(stores) + int(loads),
        shared=declared + variant.shared_memory,
        log=log,
    )
