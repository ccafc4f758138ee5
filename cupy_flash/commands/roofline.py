"""`python -m cupy_flash roofline`: the arithmetic of one attention problem as a table."""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict
from typing import Any

from cupy_flash.commands.table import aligned
from cupy_flash.commands.texts import window
from cupy_flash.gpus import UNITS, Gpu, Unit
from cupy_flash.roofline import (
    GPUS,
    Bound,
    Cost,
    bound,
    find_gpu,
    flash_attention,
    matrix_product,
    rates,
    ridge_point,
    softmax_online,
    softmax_three_pass,
    standard_attention,
)
from cupy_flash.roofline_sizes import ITEMSIZE

_EPILOG = """\
FLOPs are counted apart for the products, the softmax and the rescaling (1 GFLOP = 1e9 additions,
multiplications, comparisons, exponentials or divisions); bytes are traffic to device memory
(1 MB = 1e6 bytes); intensity is their ratio. The time, in us, is that of the tighter of the two
limits, fully used; real kernels take longer.

example:
  python -m cupy_flash roofline 2048 2048 64 --dtype bfloat16 --heads 32 --causal --gpu H200
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command on a parser."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("m", type=int, help="query rows per head")
    add("n", type=int, help="keys per head")
    add("d", type=int, help="head dim of q and k, in elements")
    add("--p", type=int, help="head dim of v, in elements (default: d)")
    add("--dtype", choices=tuple(ITEMSIZE), default="float32", help="default: %(default)s")
    add("--batch", type=int, default=1, help="batch entries (default: %(default)s)")
    add("--heads", type=int, default=1, help="query heads (default: %(default)s)")
    add("--kv-heads", type=int, help="key heads, a divisor of --heads (default: --heads)")
    add("--causal", action="store_true", help="row i sees key j if j <= i + offset")
    add("--offset", type=int, help="the key at which row 0 stands (default: n - m)")
    add(
        "--window",
        type=window,
        metavar="LEFT,RIGHT",
        help="row i sees keys i + offset - LEFT to i + offset + RIGHT; 'none' for no bound",
    )
    add("--block-m", type=int, default=128, help="rows of a row block (default: %(default)s)")
    add(
        "--block-n",
        type=int,
        help="keys of a tile; counts rescaling by tiles "
        "(default: 8 FLOPs per score, whatever the tile)",
    )
    add("--lse", action="store_true", help="count the bytes of the log-sum-exp too")
    add("--gpu", default="H200", help=f"one of {', '.join(GPUS)} (default: %(default)s)")
    add(
        "--unit",
        choices=UNITS,
        help="what runs the products; float32 on tensor is TF32 "
        "(default: fma for float32, else tensor where the GPU has it)",
    )
    add(
        "--figures",
        choices=("measured", "datasheet"),
        default="measured",
        help="measured ceilings where there are any, or datasheet peaks (default: %(default)s)",
    )
    add("--json", action="store_true", help="print one JSON object; FLOPs, bytes and seconds")


def run(args: argparse.Namespace) -> int:
    """Print the table or the JSON object; 2 and a message if an argument is refused."""
    args.p = args.d if args.p is None else args.p
    args.kv_heads = args.heads if args.kv_heads is None else args.kv_heads
    args.offset = args.n - args.m if args.offset is None else args.offset
    try:
        gpu = find_gpu(args.gpu)
        unit: Unit = args.unit or default_unit(gpu, args.dtype)
        rows = [
            (name, cost, bound(cost, gpu, args.dtype, unit, figures=args.figures))
            for name, cost in _costs(args).items()
        ]
    except (TypeError, ValueError) as error:
        print(f"roofline: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(_as_json(args, gpu, unit, rows), indent=2))
    else:
        print(_as_text(args, gpu, unit, rows))
    return 0


def default_unit(gpu: Gpu, dtype: str) -> Unit:
    """Return what runs the products of a dtype fastest without losing its accuracy."""
    # TF32 is never chosen for a user who asked for float32.
    return "tensor" if dtype != "float32" and (dtype, "tensor") in gpu.compute else "fma"


def _costs(args: argparse.Namespace) -> dict[str, Cost]:
    problem: dict[str, Any] = {
        "m": args.m,
        "n": args.n,
        "d": args.d,
        "p": args.p,
        "dtype": args.dtype,
        "batch": args.batch,
        "heads": args.heads,
        "kv_heads": args.kv_heads,
        "causal": args.causal,
        "offset": args.offset,
        "window": args.window,
    }
    flash = problem | {"block_m": args.block_m, "block_n": args.block_n, "return_lse": args.lse}
    # First, because it checks every argument under its own name.
    reused = flash_attention(**flash)
    matrices = args.batch * args.heads
    return {
        "matrix product q k^T": matrix_product(
            args.m, args.n, args.d, batch=matrices, dtype=args.dtype
        ),
        "softmax, three passes": softmax_three_pass(matrices * args.m, args.n, dtype=args.dtype),
        "softmax, online": softmax_online(matrices * args.m, args.n, dtype=args.dtype),
        "standard attention": standard_attention(**problem),
        "FlashAttention, no reuse": flash_attention(**flash, reuse_kv=False),
        "FlashAttention, k and v reused": reused,
    }


_Row = tuple[str, Cost, Bound]


def _as_json(args: argparse.Namespace, gpu: Gpu, unit: Unit, rows: list[_Row]) -> dict[str, Any]:
    names = (
        "m",
        "n",
        "d",
        "p",
        "dtype",
        "batch",
        "heads",
        "kv_heads",
        "causal",
        "offset",
        "window",
        "block_m",
        "block_n",
        "lse",
    )
    costs = {
        # JSON has no infinity, the intensity of FLOPs without any byte.
        name: asdict(cost)
        | {
            "flops": cost.flops,
            "intensity": cost.intensity if math.isfinite(cost.intensity) else None,
        }
        | asdict(limit)
        for name, cost, limit in rows
    }
    return {
        "problem": {name: getattr(args, name) for name in names},
        "gpu": gpu.name,
        "unit": unit,
        "ridge_point": ridge_point(gpu, args.dtype, unit, figures=args.figures),
        "costs": costs,
    }


def _as_text(args: argparse.Namespace, gpu: Gpu, unit: Unit, rows: list[_Row]) -> str:
    problem = [
        f"m = {args.m}, n = {args.n}, d = {args.d}, p = {args.p}, {args.dtype}, "
        f"batch {args.batch}, heads {args.heads}/{args.kv_heads}"
    ]
    bounds = ["causal"] * args.causal
    if args.window is not None:
        bounds.append(f"window ({', '.join(str(bound).lower() for bound in args.window)})")
    if bounds:
        problem.append(
            f"{', '.join(bounds)} with offset {args.offset}; the product and the two softmaxes "
            "count every pair"
        )
    header = (
        ("", "products", "softmax", "rescaling", "bytes", "intensity", "limit", "time"),
        ("", "GFLOP", "GFLOP", "GFLOP", "MB", "FLOP/byte", "", "us"),
    )
    cells = [
        (
            name,
            f"{cost.products / 1e9:.4f}",
            f"{cost.softmax / 1e9:.4f}",
            f"{cost.rescaling / 1e9:.4f}",
            f"{cost.bytes / 1e6:.3f}",
            f"{cost.intensity:.1f}",
            limit.limit,
            f"{limit.seconds * 1e6:.2f}",
        )
        for name, cost, limit in rows
    ]
    return "\n".join([*problem, "", *aligned([*header, *cells]), "", *_rates_used(args, gpu, unit)])


def _rates_used(args: argparse.Namespace, gpu: Gpu, unit: Unit) -> list[str]:
    memory, compute = rates(gpu, args.dtype, unit, figures=args.figures)
    ridge = ridge_point(gpu, args.dtype, unit, figures=args.figures)
    who = "everything" if unit == "fma" else "products"
    lines = [
        f"{gpu.name}: the limits cross at {ridge:.1f} FLOP/byte",
        f"  memory: {memory.rate / 1e12:g} TB/s ({memory.source})",
        f"  {who} on {unit}: {compute.rate / 1e12:g} TFLOP/s ({compute.source})",
    ]
    if unit == "tensor":
        fma = rates(gpu, args.dtype, "fma", figures=args.figures)[1]
        lines.append(f"  the rest on fma: {fma.rate / 1e12:g} TFLOP/s ({fma.source})")
    return lines
