"""Compile variants drawn from the full matrix, of which the cover is a small part.

    python tests/compile/sample_matrix.py --count 200 --seed 1 --compiler 13.5

Prints every kernel with a spill or a stack frame; exits with 1 if there is one.
"""

from __future__ import annotations

import argparse
import random
import sys

from nvrtc import compilers
from variants import FAMILIES, compile_report, name, variant


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--family", choices=FAMILIES, help="default: any")
    parser.add_argument("--compiler", choices=compilers(), help="NVRTC version; default: each")
    args = parser.parse_args()
    families = [args.family] if args.family else list(FAMILIES)
    chosen = [compilers()[args.compiler]] if args.compiler else list(compilers().values())
    draw = random.Random(args.seed)
    bad = 0
    for _ in range(args.count):
        family = draw.choice(families)
        row = {axis: draw.choice(values) for axis, values in FAMILIES[family].items()}
        drawn = variant(family, row)
        for compiler in chosen:
            report = compile_report(drawn, compiler)
            if report.stack or report.spills:
                bad += 1
                found = f"stack {report.stack}, spills {report.spills}"
                print(f"NVRTC {compiler.version} {name(drawn)}: {found}", flush=True)
    print(f"{args.count} drawn, {len(chosen)} compilers, {bad} with a stack frame or spills")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
