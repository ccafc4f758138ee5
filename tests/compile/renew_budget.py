"""Write what the variants need today into budget.json: `python tests/compile/renew_budget.py`.

Look at the difference before committing it: more registers mean fewer warps on a multiprocessor.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

BUDGET = Path(__file__).parent / "budget.json"


def main() -> None:
    from cupy.cuda import nvrtc

    from variants import compile_report, name, variants

    reports = {name(variant): compile_report(variant) for variant in variants()}
    table = {
        "nvrtc": ".".join(map(str, nvrtc.getVersion())),
        "kernels": {
            key: {"registers": report.registers, "shared": report.shared}
            for key, report in sorted(reports.items())
        },
    }
    BUDGET.write_text(json.dumps(table, indent=1) + "\n")
    print(f"{len(reports)} kernels")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
