"""A thousand runs of every kind of problem give the same bits."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import cupy_flash
from gpu_attention import options_on_gpu
from gpu_runtime import fill_with_nan
from problems import KERNELS_AND_DTYPES, Case

cupy = pytest.importorskip("cupy")

pytestmark = pytest.mark.gpu

RUNS = 1000
# Sizes that end inside a tile; for each pair of kernel and dtype, so 70 configurations.
PROBLEMS: dict[str, dict[str, Any]] = {
    "one row": {"heads": 8, "kv_heads": 2, "m": 1, "n": 500, "d": 64, "p": 64},
    "causal": {"heads": 4, "kv_heads": 2, "m": 150, "n": 230, "d": 72, "p": 40, "causal": True},
    "causal with lengths": {
        **{"heads": 2, "kv_heads": 1, "m": 130, "n": 170, "d": 32, "p": 32},
        **{"causal": True, "lengths": "both"},
    },
    "wide": {"heads": 2, "kv_heads": 2, "m": 70, "n": 140, "d": 200, "p": 256},
    "strided": {
        **{"heads": 2, "kv_heads": 2, "m": 100, "n": 100, "d": 40, "p": 64},
        **{"layouts": ("transposed", "sliced", "unaligned"), "scale": -0.5},
    },
    "changed scores": {
        **{"heads": 4, "kv_heads": 2, "m": 150, "n": 230, "d": 72, "p": 40},
        **{"bias": "full", "softcap": 15.0, "alibi": "heads", "sinks": "heads"},
    },
    # A block that meets a NaN where no row looks computes its rows once more.
    "hidden": {
        **{"heads": 4, "kv_heads": 2, "m": 150, "n": 230, "d": 64, "p": 64, "window": (90, 20)},
        **{"mask": "keys of a batch entry", "bias": "pairs", "poison": True, "seed": 1},
    },
}


def unsigned(x: Any) -> Any:
    return x.view(f"u{x.itemsize}")


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize(("kernel", "dtype"), KERNELS_AND_DTYPES)
def test_a_thousand_runs_give_the_same_bits(kernel: str, dtype: str, problem: str) -> None:
    arrays = Case(batch=(3,), dtypes=(dtype,) * 3, **PROBLEMS[problem]).build()
    inputs = [x.cupy() for x in arrays.inputs().values()]
    options = options_on_gpu(arrays) | {"return_lse": True, "kernel": kernel}
    call = partial(cupy_flash.attention, *inputs, **options)
    first = call()
    results = tuple(cupy.empty_like(x) for x in first)
    want, got = ([unsigned(x) for x in pair] for pair in (first, results))
    differ = [cupy.zeros_like(x) for x in want]
    for _ in range(RUNS):
        # What a run leaves unwritten differs, too.
        fill_with_nan(*results)
        call(out=results)
        # On the device, so that nothing waits for a run.
        for bits, ours, theirs in zip(differ, got, want, strict=True):
            bits |= ours ^ theirs
    counts = {
        name: int(cupy.count_nonzero(x)) for name, x in zip(("out", "lse"), differ, strict=True)
    }
    assert not any(counts.values()), f"elements whose bits are not those of the first run: {counts}"
