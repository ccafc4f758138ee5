"""Time what a warm call costs the host, and the pieces that it is made of.

    python benchmarks/time_host.py --json benchmarks/results/time_host.json

Everything is called a thousand times in a row without waiting, and takes turns with the rest, so
that what slows the host for a while slows all. Where the host's time and the time until the GPU is
done are the same, the host is the limit. PyTorch's scaled_dot_product_attention is among them if
torch is installed and sees the GPU.

The pieces: the look-up of the plan, what a plan without launches still does, the allocation of the
result, and the same kernel launched as the plan does it, by CuPy's RawKernel, and by the driver
alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from cupy_flash import api, attention, explain, launch
from cupy_flash.commands.table import aligned
from cupy_flash.driver import driver
from cupy_flash.params import PARAMS_DTYPE
from gpu_timing import machine, random_array

SHAPE = (1, 8, 128, 64)
DTYPES = ("float16", "float32")
Calls = dict[str, Callable[[], Any]]


def torch_version() -> str | None:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def torch_attention(arrays: list[Any]) -> Calls:
    """Return PyTorch's attention of the same data, if it can be called here."""
    if not torch_version():
        return {}
    import torch

    if not torch.cuda.is_available():
        return {}
    tensors = [torch.from_numpy(x.get()).to("cuda") for x in arrays]
    attend = torch.nn.functional.scaled_dot_product_attention
    return {"torch SDPA": lambda: attend(*tensors)}


def recalled(call: Callable[[], Any]) -> tuple[tuple[Any, ...], Any]:
    """Return what a warm call looks its plan up with, and the plan."""
    seen = []
    recall = api.recall

    def recorded(*args: Any) -> Any:
        found = recall(*args)
        seen.append((args, found[0]))
        return found

    api.recall = recorded
    try:
        call()
    finally:
        api.recall = recall
    ((args, plan),) = seen
    assert plan is not None, "the call was cold"
    return args, plan


def pieces(q: Any, k: Any, v: Any, out: Any) -> Calls:
    """Return the parts of `attention(q, k, v, out=out)`, and of the call without out."""
    args, plan = recalled(lambda: attention(q, k, v, out=out))
    fresh_args, fresh = recalled(lambda: attention(q, k, v))
    (step,) = plan.steps
    nothing = dataclasses.replace(plan, steps=())
    cuda, pointers = driver(), [x.data.ptr for x in (q, k, v, out)]
    stream = cupy.cuda.get_current_stream().ptr or cuda.default_stream
    # A struct of this benchmark's own, filled in as the step fills it in.
    words, arguments = step._new_block()
    for place, shift, pointer in zip(step.places, step.shifts, pointers, strict=True):
        words[place] = pointer + shift
    params = np.frombuffer(words, np.dtype((np.void, PARAMS_DTYPE.itemsize)), count=1)[0]
    sizes = (step.grid, 1, 1, step.threads, 1, 1, step.shared_memory)
    return {
        "look-up, out given": lambda: api.recall(*args),
        "look-up, out allocated": lambda: api.recall(*fresh_args),
        "plan without launches": lambda: launch.run(nothing, pointers, out, None),
        "allocation": lambda: launch._allocate(cuda, fresh.out),
        "launch": lambda: step.launch(cuda, stream, pointers),
        "launch by RawKernel": lambda: step.function(
            (step.grid,), (step.threads,), (params,), shared_mem=step.shared_memory
        ),
        # Holds on to the struct, of which the driver gets the address.
        "launch by the driver alone": lambda words=words: cuda.launch(
            step.handle, *sizes, stream, arguments, 0
        ),
    }


def measure(calls: Calls, count: int, samples: int) -> dict[str, dict[str, float]]:
    """Return the median and the least microseconds per call, of the host and until all is done."""
    device = cupy.cuda.Device()
    times: dict[str, dict[str, list[float]]] = {}
    for sample in range(samples + 1):
        for name, call in calls.items():
            device.synchronize()
            begin = time.perf_counter()
            for _ in range(count):
                call()
            host = time.perf_counter() - begin
            device.synchronize()
            done = time.perf_counter() - begin
            # The first round warms up.
            if sample:
                for when, seconds in (("host", host), ("done", done)):
                    found = times.setdefault(name, {}).setdefault(when, [])
                    found.append(seconds / count * 1e6)
    return {
        name: {
            "host_median": statistics.median(found["host"]),
            "host_least": min(found["host"]),
            "done_median": statistics.median(found["done"]),
        }
        for name, found in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the results there")
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--calls", type=int, default=1000, help="calls in a row")
    parser.add_argument("--samples", type=int, default=15, help="their median counts")
    args = parser.parse_args()
    microseconds, kernels = {}, {}
    table = [["dtype", "called", "host us", "least us", "until done us"]]
    for dtype in args.dtype:
        rng = np.random.default_rng(0)
        q, k, v, out = arrays = [random_array(rng, SHAPE, np.dtype(dtype)) for _ in range(4)]
        calls: Calls = {
            "attention, out given": lambda q=q, k=k, v=v, out=out: attention(q, k, v, out=out),
            "attention, out allocated": lambda q=q, k=k, v=v: attention(q, k, v),
        }
        for call in calls.values():
            call()
        calls |= torch_attention(arrays[:3]) | pieces(*arrays)
        kernels[dtype] = explain(q, k, v).kernel
        microseconds[dtype] = measure(calls, args.calls, args.samples)
        for name, found in microseconds[dtype].items():
            table.append([dtype, name, *(f"{value:.2f}" for value in found.values())])
    print(f"per call, of {args.samples} times {args.calls} calls in a row on {SHAPE}:")
    print(*aligned(table), sep="\n")
    if args.json:
        results = {
            "machine": machine(),
            "torch": torch_version(),
            "shape": SHAPE,
            "calls": args.calls,
            "samples": args.samples,
            "kernels": kernels,
            "microseconds": microseconds,
        }
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
