"""Measure errors of gradients beside those of an unfused computation in the same precision.

    python benchmarks/measure_gradient_errors.py --json benchmarks/results/gradient_errors.json
    python benchmarks/measure_gradient_errors.py --numpy --n 64

Every dtype by its kernel, and the naive kernel in float32; every option; normally distributed data,
logits 30 times as large, scores with a common offset of -120, one channel of keys and values far
above the others, and the recorded activations of a model. The exact gradients are those of
`cupy_flash.reference`, in float64, for float64 in long double. The largest and the
root-mean-square error of each whole gradient stand beside those of `unfused_gradients`, and, where
no score is above 30, beside what is allowed: the largest error ``FACTORS[dtype][0]`` times the
unfused one and an ulp of the largest element, the rms ``FACTORS[dtype][1]`` times. Gradients of a
number for each head aren't judged: beside theirs the unfused computation rounds nothing to 16 bits.

Exact gradients are computed on the CPU, a case in a process, where its kernels are compiled too.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from cupy_flash import attention, attention_backward, reference
from cupy_flash.arrays import FLOAT_NAMES
from cupy_flash.commands import provenance
from cupy_flash.commands.table import aligned
from cupy_flash.device import import_cupy
from cupy_flash.reference_heads import Heads
from gradient_cases import FAMILIES, Call, ErrorCase, calls, cases
from unfused_gradients import NUMBERS, scores, unfused_gradients

# (of the largest error, of the rms) in those of the unfused computation. Sums of 32 and 64 bits
# run in another order than the unfused ones.
FACTORS = {
    "float16": (2.0, 1.3),
    "bfloat16": (2.0, 1.3),
    "float32": (4.0, 4.0),
    "float64": (4.0, 4.0),
}
LARGEST_SCORE = 30
N = 512
Array = np.ndarray[Any, Any]
Point = dict[str, Any]


def computed(case: ErrorCase, call: Call) -> dict[str, Array]:
    """Return our gradients, of the GPU where the case names a kernel."""

    def place(x: Any) -> Any:
        on_gpu = case.kernel is not None and isinstance(x, np.ndarray)
        return import_cupy().asarray(x) if on_gpu else x

    given = {name: place(x) for name, x in call.arguments.items()} | {"kernel": case.kernel}
    arrays = [given.pop(name) for name in "qkv"]
    o, lse = attention(*arrays, return_lse=True, **given)
    found = attention_backward(place(call.do), *arrays, o, lse, wrt=call.wrt, **given)
    return {
        name: x if isinstance(x, np.ndarray) else import_cupy().asnumpy(x)
        for name, x in found._asdict().items()
    }


def measure(case: ErrorCase) -> list[Point]:
    """Return a point for each kind of data."""
    points = []
    for call in calls(case):
        exact = reference.attention_backward(
            call.do, *(call.arguments[name] for name in "qkv"), wrt=call.wrt, **options_of(call)
        )
        plain = unfused_gradients(call.do, call.arguments, call.wrt)
        ours = computed(case, call)
        largest = largest_score(call)
        points.append(
            {
                "dtype": case.dtype,
                "kernel": case.kernel or "numpy",
                "d": case.d,
                "n": call.do.shape[-2],
                "option": case.option,
                "data": call.data,
                "largest_score": largest,
                "gradients": {
                    name: beside(
                        ours[name],
                        plain[name],
                        want,
                        largest <= LARGEST_SCORE and name not in NUMBERS,
                    )
                    for name, want in exact._asdict().items()
                },
            }
        )
    return points


def options_of(call: Call) -> dict[str, Any]:
    return {name: x for name, x in call.arguments.items() if name not in ("q", "k", "v")}


def largest_score(call: Call) -> float:
    found = 0.0
    for _, head in Heads(**call.arguments):
        y, _ = scores(head)
        found = max(found, float(np.abs(y[head.seen]).max(initial=0.0)))
    return found


def beside(ours: Array, plain: Array, want: Array, judged: bool) -> dict[str, float]:
    """Return the errors of both, and their ratios; of what is allowed if that is judged."""
    found = {
        "exact_max": float(np.abs(want).max()),
        "exact_rms": float(np.sqrt(np.mean(want**2))),
    }
    for name, got in (("", ours), ("unfused_", plain)):
        error = np.abs(got.astype(want.dtype) - want)
        found[f"{name}max_error"] = float(error.max())
        found[f"{name}rms_error"] = float(np.sqrt(np.mean(error**2)))
    # Where both are the rounded exact gradient there is nothing to divide.
    tiny = float(np.finfo(np.float64).tiny)
    for what in ("max", "rms"):
        own, other = found[f"{what}_error"], found[f"unfused_{what}_error"]
        found[f"{what}_ratio"] = own / max(other, tiny) if own else 0.0
    if judged:
        of_max, of_rms = FACTORS[ours.dtype.name]
        ulp = float(ml_dtypes.finfo(ours.dtype).eps) * found["exact_max"]
        allowed = of_max * found["unfused_max_error"] + ulp
        found["of_allowed_max"] = found["max_error"] / max(allowed, tiny)
        found["of_allowed_rms"] = found["rms_error"] / max(
            of_rms * found["unfused_rms_error"], tiny
        )
    return found


def table(points: Sequence[Point]) -> list[list[str]]:
    """Return a row for each point: error in units of the exact rms, and the ratios."""
    names = list(dict.fromkeys(name for point in points for name in point["gradients"]))
    header = ["dtype", "kernel", "d", "option", "data", "largest score"]
    rows = [[*header, *(f"d{name}: max / unfused, rms / unfused" for name in names)]]
    for point in points:
        cells = []
        for name in names:
            one = point["gradients"].get(name)
            cells.append(
                f"{one['max_error'] / (one['exact_rms'] or 1):.1e} "
                f"{one['max_ratio']:.2f} {one['rms_ratio']:.2f}"
                if one
                else ""
            )
        place = [str(point[key]) for key in ("dtype", "kernel", "d", "option", "data")]
        rows.append([*place, f"{point['largest_score']:.1f}", *cells])
    return rows


def judged(points: Sequence[Point]) -> Iterator[tuple[float, str]]:
    """Yield each gradient's error over the allowed one, the larger of both, and which it is."""
    for point in points:
        for name, one in point["gradients"].items():
            if "of_allowed_max" in one:
                place = [str(point[key]) for key in ("dtype", "kernel", "d", "option", "data")]
                yield (
                    float(np.max([one["of_allowed_max"], one["of_allowed_rms"]])),
                    f"d{name} of {' '.join(place)}",
                )


def summary(points: Sequence[Point]) -> list[str]:
    """Say how many gradients are within what is allowed, and which is the worst."""
    found = list(judged(points))
    # NaN is not within anything.
    beyond = [f"beyond: {which}: {ratio:.2f}" for ratio, which in found if not ratio <= 1]
    ratio, which = max(found, key=lambda one: (np.nan_to_num(one[0], nan=np.inf), one[1]))
    total = sum(len(point["gradients"]) for point in points)
    return [
        f"{len(found) - len(beyond)} of {len(found)} gradients within what is allowed, "
        f"worst {ratio:.2f} ({which}); {total - len(found)} not judged",
        *beyond,
    ]


def measured(wanted: Sequence[ErrorCase], processes: int) -> list[Point]:
    if processes == 1:
        return [point for case in wanted for point in measure(case)]
    # Processes of their own, each with one thread, as many as there are.
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    # A forked process can't use CUDA.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        return [point for points in pool.map(measure, wanted) for point in points]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the results there")
    parser.add_argument("--numpy", action="store_true", help="the NumPy path, without a GPU")
    parser.add_argument("--dtype", nargs="+", choices=FLOAT_NAMES, default=list(FLOAT_NAMES))
    parser.add_argument("--n", type=int, default=N, help=f"rows and keys, float64 half ({N})")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    begin = time.perf_counter()
    families = [(dtype, None) for dtype in FLOAT_NAMES] if args.numpy else FAMILIES
    wanted = cases(args.n, [family for family in families if family[0] in args.dtype])
    points = measured(wanted, min(args.processes, len(wanted)))
    results = {
        "machine": provenance.machine(on_gpu=not args.numpy),
        "factors": FACTORS,
        "largest_judged_score": LARGEST_SCORE,
        "points": points,
    }
    if args.json is not None:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    print(*aligned(table(points)), "", *summary(points), sep="\n")
    print(f"{len(points)} problems in {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
