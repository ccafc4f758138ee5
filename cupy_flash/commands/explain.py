"""`python -m cupy_flash explain`: which kernel a call gets, from shapes and options alone."""

from __future__ import annotations

import argparse
import sys

from cupy_flash.arrays import FLOAT_NAMES
from cupy_flash.commands.texts import shape, window
from cupy_flash.explanation import explain
from cupy_flash.options import INTEGERS

# Arrays that an option takes, and their element types; the bias may have any real one.
_SMALL = {
    "mask": "bool",
    "bias": None,
    "alibi_slopes": "float32",
    "sinks": "float32",
    "q_lengths": "int32",
    "k_lengths": "int32",
}
_BIAS_DTYPES = (*FLOAT_NAMES, *(dtype.name for dtype in INTEGERS))

_EPILOG = """\
Shapes are comma-separated extents, the matrices last: batch,heads,rows,columns. Nothing is
computed, and neither a GPU nor CuPy is needed.

example:
  python -m cupy_flash explain 2,8,1024,64 2,2,1024,64 --dtype float16 --causal --arch 90
  python -m cupy_flash explain 2,8,1024,64 --window 127,0 --mask 2,1,1,1024 --sinks 8
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command on a parser."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("q", type=shape, metavar="Q", help="shape of q")
    add("k", type=shape, metavar="K", nargs="?", help="shape of k (default: Q)")
    add("v", type=shape, metavar="V", nargs="?", help="shape of v (default: K)")
    add("--dtype", choices=FLOAT_NAMES, default="float32", help="of all arrays (%(default)s)")
    for name in "qkv":
        add(f"--{name}-dtype", choices=FLOAT_NAMES, help=f"of {name} (default: --dtype)")
    add("--scale", type=float, help="factor of the scores (default: 1/sqrt(d))")
    add("--causal", action="store_true", help="row i sees key j if j <= i + offset")
    add("--offset", type=int, help="the key at which row 0 stands (default: n - m)")
    add(
        "--window",
        type=window,
        metavar="LEFT,RIGHT",
        help="row i sees keys i + offset - LEFT to i + offset + RIGHT; 'none' for no bound",
    )
    add("--softcap", type=float, help="c of c tanh(s / c) (default: no cap)")
    for name, dtype in _SMALL.items():
        add(
            f"--{name.replace('_', '-')}",
            type=shape,
            metavar="SHAPE",
            help=f"shape of {name}, {dtype or 'of --bias-dtype'} (default: no {name})",
        )
    add("--bias-dtype", choices=_BIAS_DTYPES, default="float32", help="of the bias (%(default)s)")
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
    small = {
        name: (extents, dtype or args.bias_dtype)
        for name, dtype in _SMALL.items()
        if (extents := getattr(args, name)) is not None
    }
    try:
        explanation = explain(
            (args.q, args.q_dtype or args.dtype),
            (k, args.k_dtype or args.dtype),
            (v, args.v_dtype or args.dtype),
            arch=args.arch,
            scale=args.scale,
            causal=args.causal,
            offset=args.offset,
            window=args.window,
            softcap=args.softcap,
            kernel=args.kernel,
            precision=args.precision,
            return_lse=args.return_lse,
            **small,
        )
    except (TypeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print(explanation)
    return 0
