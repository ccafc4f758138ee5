"""Run the tests on the GPU and record what they said.

    python benchmarks/record_gpu_tests.py --json benchmarks/results/gpu_tests.json -- -n 6

Arguments after `--` go to pytest.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from gpu_timing import machine

ROOT = Path(__file__).parents[1]


def anonymous(text: str, executable: str = sys.executable, prefix: str = sys.prefix) -> str:
    """Take the places of this machine out of a message."""
    return text.replace(executable, "python").replace(prefix, "<environment>")


def outcome(case: ElementTree.Element) -> tuple[str, str]:
    """Return how a test ended, and why it did not pass."""
    for kind in ("failure", "error", "skipped"):
        found = case.find(kind)
        if found is not None:
            return kind, anonymous((found.get("message") or "").splitlines()[0])
    return "passed", ""


def summary(report: Path) -> dict[str, Any]:
    """Return the counts of a junit report, and the tests that didn't pass with their reasons."""
    cases = list(ElementTree.parse(report).iter("testcase"))
    ends = {f"{case.get('classname')}::{case.get('name')}": outcome(case) for case in cases}
    return {
        "counts": dict(Counter(end for end, _ in ends.values())),
        "not_passed": {name: f"{end}: {why}" for name, (end, why) in ends.items() if why},
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "tests/gpu", f"--junitxml={report}"]
        code = subprocess.run([*command, *args.pytest], cwd=ROOT, check=False).returncode
        results = {"machine": machine(), "exit_status": code, **summary(report)}
    args.json.write_text(json.dumps(results, indent=1) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
