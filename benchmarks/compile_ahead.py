"""Compile the kernels of a benchmark in processes of their own, into CuPy's cache on disk.

A kernel takes seconds and a benchmark has dozens; what is in the cache is loaded in milliseconds.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import cupy

from cupy_flash import attention, attention_backward
from cupy_flash.accuracy import accumulation
from cupy_flash.commands.machine import one_line
from option_cases import OptionCase, options_of
from peers import Case
from peers_backward import Drawn

# No kernel depends on these; n is beyond every window.
N, BATCH = 1280, 2
# The gradients of q, k and v take two kernels, or three, beside the forward call's.
PASSES = ((), ("q",), ("k", "v"))


class Task(NamedTuple):
    """A case, of which gradients (none: the forward call alone), and by which family of kernels."""

    case: Case
    wrt: tuple[str, ...]
    kernel: str | None = None


def compile_ahead(tasks: Sequence[Task]) -> None:
    """Compile for all of them, as many at a time as there are processors; say what failed."""
    begin = time.perf_counter()
    processes = min(len(tasks), os.cpu_count() or 1)
    print(f"compiling for {len(tasks)} calls in {processes} processes", flush=True)
    # A forked process can't use CUDA.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        failures = [why for why in pool.map(compile_one, tasks) if why]
    print(*failures, f"compiled in {time.perf_counter() - begin:.0f} s", sep="\n", flush=True)


def compile_one(task: Task) -> str | None:
    """Make a small call of the same kernels; return why it failed: the benchmark will raise it."""
    case, wrt, kernel = task
    try:
        case = replace(case, batch=BATCH, n=N)
        options = options_of(case, {}) if isinstance(case, OptionCase) else {}
        options |= {"causal": case.causal, "kernel": kernel}
        drawn = Drawn()
        q, k, v, o, do = (drawn.array(case, case.heads, seed) for seed in range(5))
        if not wrt:
            attention(q, k, v, return_lse=True, **options)
        else:
            # Not the right o and lse, which would take the forward call's kernel.
            lse = cupy.zeros(q.shape[:-1], accumulation(case.dtype))
            attention_backward(do, q, k, v, o, lse, wrt=wrt, **options)
    except Exception as error:
        return f"not compiled: {case}, {wrt}: {one_line(error)}"
    return None
