"""`python -m cupy_flash info`: what is installed here, what doesn't fit, what will run where."""

from __future__ import annotations

import argparse
import json
import os
import platform
from typing import Any

from cupy_flash import device as devices
from cupy_flash.arrays import FLOAT_NAMES
from cupy_flash.commands import machine
from cupy_flash.commands.machine import Unknown, probe
from cupy_flash.commands.mismatches import Facts, mismatches
from cupy_flash.commands.table import aligned
from cupy_flash.env import OURS, Variable
from cupy_flash.explanation import explain
from cupy_flash.select import choose
from cupy_flash.unfused import cublas_problem

_EPILOG = """\
Works without a GPU and without CuPy; what can't be found out is shown with the reason. Please put
the output into bug reports.

example:
  python -m cupy_flash info --json > environment.json
"""

# CuPy's variables that decide what our kernels are compiled to, where they are kept and on which
# stream they run. Source: "Environment variables" in CuPy's reference.
CUPYS = (
    Variable("CUPY_CACHE_DIR", machine.DEFAULT_CACHE, "folder of compiled kernels"),
    Variable("CUPY_CACHE_IN_MEMORY", "0", "1: compiled kernels are kept in memory only"),
    Variable("CUPY_CACHE_SAVE_CUDA_SOURCE", "0", "if set, sources are kept beside them"),
    Variable("CUPY_DUMP_CUDA_SOURCE_ON_ERROR", "0", "1: print a source that doesn't compile"),
    Variable("CUPY_COMPILE_WITH_PTX", "0", "1: compile to PTX, which the driver translates"),
    Variable("CUPY_CUDA_PER_THREAD_DEFAULT_STREAM", "0", "1: every thread has its default stream"),
    Variable("CUDA_PATH", "found by cuda.pathfinder", "CUDA toolkit that CuPy uses"),
)

HEAD_DIMS = (64, 128, 256, 512)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command on a parser."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the report; always 0."""
    report = collect()
    if args.json:
        print(json.dumps(report, indent=2, default=lambda unknown: {"unknown": unknown.why}))
    else:
        print("\n".join(_as_text(report)))
    return 0


def collect() -> dict[str, Any]:
    """Run every probe.

    Returns
    -------
    dict
        Strings, numbers, lists and dicts; an `Unknown` where a probe failed.
    """
    installed = machine.distributions()
    no_gpu = machine.gpu_problem()
    gpus = Unknown(no_gpu) if no_gpu else probe(machine.gpus)
    nvrtc = probe(devices.nvrtc_version)
    driver = probe(machine.driver_version)
    runtime = probe(machine.runtime_version)
    path = probe(machine.nvrtc_path)
    highest = probe(machine.highest_arch)
    facts = Facts(
        distributions=installed,
        nvrtc=_known(nvrtc),
        nvrtc_path=str(path),
        highest_arch=_known(highest),
        driver=_known(driver),
        runtime=_known(runtime),
        archs=tuple(gpu["arch"] for gpu in _known(gpus) or ()),
        ptx=os.environ.get("CUPY_COMPILE_WITH_PTX") == "1",
    )
    return {
        "versions": {
            "cupy_flash": probe(_own_version),
            "Python": platform.python_version(),
            "NumPy": installed.get("numpy", "not installed"),
            "ml_dtypes": installed.get("ml-dtypes", "not installed"),
            "CuPy": probe(lambda: devices.import_cupy().__version__),
            "CUDA runtime in CuPy": _dotted(runtime),
            "CUDA of the driver": _dotted(driver),
            "platform": platform.platform(),
        },
        "gpus": gpus,
        "compiler": {
            "NVRTC that CuPy loaded": _dotted(nvrtc),
            "its file": path,
            "newest GPU it knows": highest if isinstance(highest, Unknown) else f"sm_{highest}",
            "CUDA headers": probe(_headers),
            "kernel cache": probe(_cache),
            "cuBLAS": probe(_cublas),
        },
        "mismatches": mismatches(facts),
        "runs where": Unknown(no_gpu) if no_gpu else probe(_routes),
        "environment": {
            variable.name: {
                "value": os.environ.get(variable.name),
                "default": variable.default,
                "meaning": variable.meaning,
            }
            for variable in (*OURS, *CUPYS)
        },
    }


def _known(found: Any) -> Any:
    return None if isinstance(found, Unknown) else found


def _dotted(version: Any) -> Any:
    return version if isinstance(version, Unknown) else f"{version[0]}.{version[1]}"


def _own_version() -> str:
    from cupy_flash import __version__

    return __version__


def _headers() -> str:
    folder = machine.header_folder()
    if folder is None:
        return "none found: our kernels need none, but CuPy's own (astype, exp) do"
    return f"{folder} (CuPy passes them; our kernels need none)"


def _cache() -> str:
    folder, writable = machine.kernel_cache()
    if os.environ.get("CUPY_CACHE_IN_MEMORY") == "1":
        return "in memory (CUPY_CACHE_IN_MEMORY=1): every process compiles again"
    if writable:
        return f"{folder} (writable)"
    return f"{folder} (NOT writable: CuPy can't keep new kernels and fails; set CUPY_CACHE_DIR)"


def _cublas() -> str:
    devices.import_cupy()
    problem = cublas_problem()
    if problem is None:
        return "found (cupy.matmul uses it; our kernels don't)"
    return f"{problem.splitlines()[0]} (for cupy.matmul; our kernels don't use it)"


def _routes() -> list[dict[str, Any]]:
    """Which family computes what, for every GPU, dtype and some head dims."""
    routes = []
    for gpu in machine.gpus():
        for dtype in FLOAT_NAMES:
            families = {}
            for head_dim in HEAD_DIMS:
                x = ((1024, head_dim), dtype)
                choice = choose(explain(x, x, x).problem, devices.actual(gpu["index"]))
                families[str(head_dim)] = choice.variant.family
            routes.append({"gpu": gpu["index"], "dtype": dtype, "families": families})
    return routes


def _as_text(report: dict[str, Any]) -> list[str]:
    lines = _section("Versions", _pairs(report["versions"]))
    lines += _section("GPUs", _gpu_lines(report["gpus"]))
    lines += _section("Compiler", _pairs(report["compiler"]))
    lines += _section("Mismatches", report["mismatches"] or ["none found"])
    lines += _section("What runs where", _route_lines(report["runs where"]))
    variables = [
        (
            name,
            f"{entry['value']!r}" if entry["value"] else f"not set: {entry['default']}",
            entry["meaning"],
        )
        for name, entry in report["environment"].items()
    ]
    return lines + _section("Environment variables", aligned(variables, right=False))[:-1]


def _section(title: str, lines: list[str]) -> list[str]:
    return [title, *(f"  {line}" for line in lines), ""]


def _pairs(entries: dict[str, Any]) -> list[str]:
    return aligned([(name, str(value)) for name, value in entries.items()], right=False)


def _gpu_lines(gpus: Any) -> list[str]:
    if isinstance(gpus, Unknown):
        return [f"none: {gpus.why}"]
    return [
        f"{gpu['index']}: {gpu['name']}, sm_{gpu['arch']}, {gpu['memory_bytes'] / 2**30:.1f} GiB, "
        f"{gpu['multiprocessors']} multiprocessors, "
        f"{gpu['shared_memory_per_block_bytes'] / 2**10:g} KiB of shared memory per block"
        for gpu in gpus
    ]


def _route_lines(routes: Any) -> list[str]:
    lines = ["NumPy arrays: the blocked NumPy path"]
    if isinstance(routes, Unknown):
        return [*lines, "CuPy arrays: nowhere, see GPUs"]
    header = ("CuPy arrays", *(f"d, p = {head_dim}" for head_dim in HEAD_DIMS))
    cells = [
        (f"GPU {route['gpu']}, {route['dtype']}", *route["families"].values()) for route in routes
    ]
    return [*lines, *aligned([header, *cells]), "each with every option of attention"]
