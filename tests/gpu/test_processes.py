"""Threads, processes and CuPy's kernel cache: each in a fresh process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpu_runtime import every_fast_kernel

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]

# Prints a report as its last line; the arguments are threads, calls per thread, kernel and dtype.
FRESH_PROCESS = """
import collections, hashlib, json, sys, threading, time
import cupy, numpy as np
import cupy_flash
from cupy_flash import compile as compiling

compiled, digests, errors = collections.Counter(), collections.defaultdict(set), []
guard, compile_one = threading.Lock(), compiling._compile

def counted(variant):
    with guard:
        compiled[str(variant)] += 1
    return compile_one(variant)

compiling._compile = counted
rng = np.random.default_rng(0)
threads, calls, kernel, dtype = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
hosts = (rng.standard_normal((2, 3, 150, 64), np.float32).astype(dtype) for _ in range(3))
q, k, v = map(cupy.asarray, hosts)
options = {"kernel": kernel, "return_lse": True}
cupy.cuda.Device().synchronize()
together = threading.Barrier(threads)

def work():
    try:
        together.wait()
        with cupy.cuda.Stream(non_blocking=True):
            for call in range(calls):
                causal = call % 2 == 1
                out, lse = cupy_flash.attention(q, k, v, causal=causal, **options)
                bits = hashlib.sha256(out.get().tobytes() + lse.get().tobytes()).hexdigest()
                with guard:
                    digests[str(causal)].add(bits)
    except Exception as error:
        errors.append(repr(error))

begin = time.perf_counter()
cupy_flash.attention(q, k, v, **options) if threads == 1 else None
cupy.cuda.Device().synchronize()
first = time.perf_counter() - begin
workers = [threading.Thread(target=work) for _ in range(threads)]
[worker.start() for worker in workers]
[worker.join() for worker in workers]
found = {name: sorted(bits) for name, bits in digests.items()}
print(json.dumps({"compiled": compiled, "digests": found, "errors": errors, "first": first}))
"""


def fresh_process(
    cache: Path,
    threads: int = 1,
    calls: int = 2,
    *,
    kernel: str = "simt",
    dtype: str = "float32",
    **variables: str,
) -> Any:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    result = subprocess.run(
        [sys.executable, "-c", FRESH_PROCESS, str(threads), str(calls), kernel, dtype],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": path, "CUPY_CACHE_DIR": str(cache), **variables},
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout.splitlines()[-1])
    assert not report["errors"], report["errors"]
    return report


def cached(folder: Path) -> dict[str, int]:
    """Return the files of a cache and when each was written; compiling anew writes anew."""
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*")}


@every_fast_kernel
def test_sixteen_threads_compile_each_variant_once_and_agree(
    kernel: str, dtype: str, tmp_path: Path
) -> None:
    report = fresh_process(tmp_path, threads=16, calls=20, kernel=kernel, dtype=dtype)
    assert sorted(report["compiled"].values()) == [1, 1], report["compiled"]
    assert {name: len(bits) for name, bits in report["digests"].items()} == {"False": 1, "True": 1}


@every_fast_kernel
def test_a_second_process_finds_the_kernels_in_the_cache(
    kernel: str, dtype: str, tmp_path: Path
) -> None:
    cold = fresh_process(tmp_path, kernel=kernel, dtype=dtype)
    written = cached(tmp_path)
    assert written, "the first process left nothing in CUPY_CACHE_DIR"
    warm = fresh_process(tmp_path, kernel=kernel, dtype=dtype)
    print(f"first call: {cold['first']:.3f} s cold, {warm['first']:.3f} s with a warm cache")
    assert cached(tmp_path) == written, "the second process compiled"
    assert warm["digests"] == cold["digests"]
    for path in tmp_path.glob("*.cubin"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    repaired = fresh_process(tmp_path, kernel=kernel, dtype=dtype)
    assert repaired["digests"] == cold["digests"], "a damaged cache changed results"


def test_kernels_may_stay_in_memory(tmp_path: Path) -> None:
    on_disk, in_memory = tmp_path / "on", tmp_path / "in"
    want = fresh_process(on_disk)["digests"]
    assert fresh_process(in_memory, CUPY_CACHE_IN_MEMORY="1")["digests"] == want
    assert not list(in_memory.glob("*.cubin")), "CUPY_CACHE_IN_MEMORY=1, but files were written"
