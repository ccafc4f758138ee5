"""Many runs of every kind of backward call give the same bits, beside a neighbour on the GPU.

pytest tests/gpu/test_backward_repeats.py --repeats 1000
"""

from __future__ import annotations

from typing import Any

import pytest

import cupy_flash
from backward_problems import Backward, names_of
from gpu_attention import options_on_gpu
from gpu_runtime import fill_with_nan
from problems import KERNELS_AND_DTYPES, Case
from test_repeats import PROBLEMS, unsigned

cupy = pytest.importorskip("cupy")

pytestmark = pytest.mark.gpu

# Beside those of the forward pass, gradients of what is shared: with 10 pairs of kernel and dtype,
# 100 configurations.
SHARED: dict[str, dict[str, Any]] = {
    "shared bias": {
        **{"heads": 4, "kv_heads": 1, "m": 150, "n": 230, "d": 40, "p": 40},
        **{"bias": "pairs", "bias_dtype": "float16", "causal": True},
    },
    "bias of keys": {
        **{"heads": 4, "kv_heads": 2, "m": 150, "n": 230, "d": 40, "p": 40, "bias": "keys"},
        **{"alibi": "one", "sinks": "one"},
    },
    "one head of keys for all": {
        **{"heads": 6, "kv_heads": 1, "m": 100, "n": 130, "d": 64, "p": 64, "squeeze": True},
    },
}


@pytest.mark.parametrize("problem", [*PROBLEMS, *SHARED])
@pytest.mark.parametrize(("kernel", "dtype"), KERNELS_AND_DTYPES)
def test_runs_give_the_same_bits(
    kernel: str, dtype: str, problem: str, pytestconfig: pytest.Config
) -> None:
    runs = pytestconfig.getoption("repeats")
    case = Case(batch=(3,), dtypes=(dtype,) * 3, **(PROBLEMS | SHARED)[problem])
    call = Backward.of(case, names_of(case))
    arrays = call.arrays
    inputs = [x.cupy() for x in arrays.inputs().values()]
    options = options_on_gpu(arrays) | {"kernel": kernel}
    o, lse = cupy_flash.attention(*inputs, **options, return_lse=True)
    size = cupy_flash.workspace_size(*inputs, wrt=call.wrt, **options)
    workspace = cupy.empty(size, cupy.uint8)
    given = (call.do.cupy(), *inputs, o, lse)
    options |= {"wrt": call.wrt, "dlse": None if call.dlse is None else call.dlse.cupy()}
    first = cupy_flash.attention_backward(*given, **options)
    results = tuple(cupy.empty_like(x) for x in first)
    want, got = ([unsigned(x) for x in found] for found in (first, results))
    differ = [cupy.zeros_like(x) for x in want]
    # 256 MiB: it takes multiprocessors, and drives the rest out of the L2 cache.
    load = cupy.zeros(2**26, cupy.float32)
    cupy.add(load, 1, out=load)
    cupy.cuda.Device().synchronize()
    neighbour, ours = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    overlapped = 0
    for _ in range(runs):
        with neighbour:
            for _ in range(6):
                cupy.add(load, 1, out=load)
        with ours:
            # What a run leaves unwritten differs, too.
            fill_with_nan(*results, workspace)
            cupy_flash.attention_backward(*given, **options, out=results, workspace=workspace)
            # On the device, so that nothing waits for a run.
            for bits, mine, theirs in zip(differ, got, want, strict=True):
                bits |= mine ^ theirs
        overlapped += not neighbour.done
    cupy.cuda.Device().synchronize()
    assert overlapped, "the neighbour was never running"
    counts = {name: int(cupy.count_nonzero(x)) for name, x in zip(call.wrt, differ, strict=True)}
    assert not any(counts.values()), f"elements whose bits are not those of the first run: {counts}"
