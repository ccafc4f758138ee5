"""`python -m cupy_flash`: the command line; each command is a module of its own."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from cupy_flash import __version__
from cupy_flash.commands import bench, check, demo, explain, info, roofline

COMMANDS = {
    "info": (info, "versions, GPUs, compiler, caches, and what doesn't fit together"),
    "check": (check, "test every kernel that runs here against exact attention"),
    "explain": (explain, "which kernel a call gets, and why"),
    "demo": (demo, "error, time and memory beside unfused attention"),
    "bench": (bench, "time and memory along a sweep of sizes; table, JSON and plots"),
    "roofline": (roofline, "FLOPs, bytes and the least time of a problem"),
}

_EPILOG = """\
examples:
  python -m cupy_flash info
  python -m cupy_flash check
  python -m cupy_flash explain 2,8,1024,64 2,2,1024,64 --dtype float16 --causal
  python -m cupy_flash demo
  python -m cupy_flash bench length --json length.json --plot length.png
  python -m cupy_flash roofline 2048 2048 64

`python -m cupy_flash COMMAND --help` says more about one.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 for success, 1 for a failed check, 2 for a refused argument."""
    parser = argparse.ArgumentParser(
        prog="python -m cupy_flash",
        description="FlashAttention for CuPy: what is installed, whether it is right, how fast.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"cupy_flash {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (module, summary) in COMMANDS.items():
        sentence = f"{summary[0].upper()}{summary[1:]}."
        command = commands.add_parser(name, help=summary, description=sentence)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    args = parser.parse_args(argv)
    code: int = args.run(args)
    return code


if __name__ == "__main__":
    sys.exit(main())
