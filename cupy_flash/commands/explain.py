"""`python -m cupy_flash explain`: which kernel a call gets, from shapes and options alone."""

from __future__ import annotations

import argparse
import sys

from cupy_flash.arrays import FLOAT_NAMES
from cupy_flash.explanation import explain

_EPILOG = """\
Shapes are comma-separated extents, the matrices last: batch,heads,rows,columns. Nothing is
computed, and neither a GPU nor CuPy is needed.

example:
  python -m cupy_flash explain 2,8,1024,64 2,2,1024,64 --dtype float16 --causal --arch 90
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command on a parser."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("q", type=_shape, metavar="Q", help="shape of q")
    add("k", type=_shape, metavar="K", nargs="?", help="shape of k (default: Q)")
    add("v", type=_shape, metavar="V", nargs="?", help="shape of v (default: K)")
    add("--dtype", choices=FLOAT_NAMES, default="float32", help="of all arrays (%(default)s)")
    for name in "qkv":
        add(f"--{name}-dtype", choices=FLOAT_NAMES, help=f"of {name} (default: --dtype)")
    add("--scale", type=float, help="factor of the scores (default: 1/sqrt(d))")
    add("--causal", action="store_true", help="row i sees key j if j <= i + offset")
    add("--offset", type=int, help="the key at which row 0 stands (default: n - m)")
    add("--kernel", help="force a family: naive, simt, sm80, sm90 (default: the fastest that can)")
    add("--precision", help="highest or tf32 (default: the accuracy of the dtype)")
    add("--return-lse", action="store_true", help="return the log-sum-exp too")
    add(
        "--arch",
        type=int,
        help="compute capability times ten, such as 90 (default: this machine's GPU, else 90)",
    )


def run(args: argparse.Namespace) -> int:
    """Print the explanation; 2 and a message if the call would be refused."""
    k = args.q if args.k is None else args.k
    v = k if args.v is None else args.v
    try:
        explanation = explain(
            (args.q, args.q_dtype or args.dtype),
            (k, args.k_dtype or args.dtype),
            (v, args.v_dtype or args.dtype),
            arch=args.arch,
            scale=args.scale,
            causal=args.causal,
            offset=args.offset,
            kernel=args.kernel,
            precision=args.precision,
            return_lse=args.return_lse,
        )
    except (TypeError, ValueError, NotImplementedError) as error:
        print(error, file=sys.stderr)
        return 2
    print(explanation)
    return 0


def _shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(extent) for extent in text.split(","))
    except ValueError:
        shape = (-1,)
    if min(shape) < 0:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no shape; say extents >= 0 with commas, such as 2,8,1024,64"
        )
    return shape
