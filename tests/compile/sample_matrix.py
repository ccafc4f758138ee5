"""Compile variants drawn from the full matrix, of which the cover is a small part.

    python tests/compile/sample_matrix.py --count 200 --seed 1

Prints every kernel with a spill or a stack frame; exits with 1 if there is one.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path


def main() -> int:
    from variants import AXES, compile_report, name, variant

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    draw = random.Random(args.seed)
    bad = 0
    for _ in range(args.count):
        drawn = variant({axis: draw.choice(values) for axis, values in AXES.items()})
        report = compile_report(drawn)
        if report.stack or report.spills:
            bad += 1
            print(f"{name(drawn)}: stack {report.stack}, spills {report.spills}", flush=True)
    print(f"{args.count} compiled, {bad} with a stack frame or spills")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main())
