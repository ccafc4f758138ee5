r"""Write what every variant needs today, of every pinned compiler, into budget.json.

    python tests/compile/renew_budget.py
    python tests/compile/renew_budget.py --only 'sm_\d+ simt'

The second one renews kernels whose names begin so, and keeps the other figures. Prints what
changed. Look at it before committing it: more registers mean fewer warps on a multiprocessor.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from nvrtc import PINS, compilers, problem
from variants import compile_report, name, variants

BUDGET = Path(__file__).parent / "budget.json"
# NVRTC version -> kernel -> {"registers": of a thread, "shared": bytes of a block}, and where
# registers spill "stack": bytes of a thread.
Budget = dict[str, dict[str, dict[str, int]]]


def budget() -> Budget:
    found: Budget = json.loads(BUDGET.read_text())
    return found


def differences(old: Budget, new: Budget) -> list[str]:
    """Return a line for each figure that changed, each kernel that came, each that went."""

    def figures(table: Budget) -> dict[str, int]:
        return {
            f"NVRTC {version} {kernel}: {kind}": figure
            for version, kernels in table.items()
            for kernel, kinds in kernels.items()
            for kind, figure in kinds.items()
        }

    before, after = figures(old), figures(new)
    return [
        f"{key} {before.get(key, 'none')} -> {after.get(key, 'none')}"
        for key in sorted(before | after)
        if before.get(key) != after.get(key)
    ]


def text(table: Budget) -> str:
    """Return JSON with one line a kernel, for diffs that say which one they are about."""
    blocks = []
    for version, kernels in table.items():
        lines = [f"  {json.dumps(key)}: {json.dumps(kernels[key])}" for key in sorted(kernels)]
        blocks.append(f" {json.dumps(version)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def merged(old: Budget, new: Budget, names: dict[str, list[str]]) -> Budget:
    """Return the new figures, and of the kernels without any the old ones."""
    return {
        version: {
            key: new[version].get(key) or old[version][key]
            for key in of_version
            if key in new[version] or key in old.get(version, {})
        }
        for version, of_version in names.items()
    }


def figures_of(version: str, index: int) -> dict[str, int]:
    report = compile_report(variants(version)[index], compilers()[version])
    figures = {"registers": report.registers, "shared": report.shared}
    return figures | ({"stack": report.stack} if report.stack else {})


def main() -> int:
    parser = argparse.ArgumentParser(description="Write what every kernel needs into budget.json.")
    parser.add_argument("--only", default="", metavar="REGEX", help="how names begin")
    only = re.compile(parser.parse_args().only)
    missing = [why for why in map(problem, PINS) if why]
    if missing:
        print(*missing, sep="\n", file=sys.stderr)
        return 1
    names = {version: list(map(name, variants(version))) for version in PINS}
    work = [
        (version, index)
        for version in PINS
        for index, key in enumerate(names[version])
        if only.match(key)
    ]
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        figures = list(processes.map(figures_of, *zip(*work, strict=True), chunksize=4))
    new: Budget = {version: {} for version in PINS}
    for (version, index), found in zip(work, figures, strict=True):
        new[version][names[version][index]] = found
    old = budget() if BUDGET.exists() else {}
    new = merged(old, new, names)
    changed = differences(old, new)
    BUDGET.write_text(text(new))
    print(
        *changed,
        f"{len(names[next(iter(PINS))])} kernels, {len(changed)} figures changed",
        sep="\n",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
