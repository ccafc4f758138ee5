"""Gradients of random problems through the emulated kernels, against their formulas."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cupy_flash import accuracy, reference
from emulated_attention import some_schedule
from emulated_backward import attention_backward
from gradient_bounds import bounds
from layouts import LAYOUTS, OUT_LAYOUTS, Strided, strided
from option_arrays import visible
from probe_tools import assert_same_bits
from problems import DTYPES, Arrays, Case, result_dtype
from strategies import cases, few_kinds, own_draws

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]

KERNELS = ("naive", "simt")
Array = np.ndarray[Any, Any]


@dataclass
class Backward:
    """A case with the gradients of its results, and the arguments whose gradients are wanted."""

    arrays: Arrays
    do: Strided
    dlse: Array | None
    wrt: tuple[str, ...]

    @classmethod
    def of(cls, case: Case, wrt: tuple[str, ...] | None = None, dlse: bool = True) -> Backward:
        """Draw them; in rows that see no key they are NaN."""
        pick, rng = random.Random(case.seed), np.random.default_rng(case.seed)
        arrays = case.build()
        dtype = np.dtype(DTYPES[result_dtype(case)])
        seen = visible(case.leading(), len(case.batch), case.m, case.n, arrays.options())
        keyless = ~seen.any(axis=-1)
        # Where an axis broadcasts, a NaN would be in other rows too.
        layouts = OUT_LAYOUTS if keyless.any() else LAYOUTS
        do = strided((*case.leading(), case.m, case.p), dtype, pick.choice(layouts))
        if do.numpy().size:
            do.numpy()[...] = rng.standard_normal(do.shape)
            do.numpy()[keyless] = np.nan
        of_lse = None
        if dlse:
            accumulate = np.float64 if dtype == np.float64 else np.float32
            of_lse = rng.standard_normal(do.shape[:-1]).astype(accumulate)
            if case.sinks is None:
                of_lse[keyless] = np.nan
        return cls(arrays, do, of_lse, wrt or some_of(pick, arrays))

    def run(self, kernel: str, **how: Any) -> dict[str, Array]:
        result = attention_backward(
            self.arrays, self.do, kernel, dlse=self.dlse, wrt=self.wrt, **how
        )
        return result.found

    def check(self, found: dict[str, Array]) -> float:
        """Raise AssertionError unless the gradients are right; return the worst error / bound."""
        inputs = [x.numpy() for x in self.arrays.inputs().values()]
        exact = reference.attention_backward(
            self.do.numpy(), *inputs, dlse=self.dlse, wrt=self.wrt, **self.arrays.options()
        )
        dlse = self.dlse
        if dlse is None:
            dlse = np.zeros(self.do.shape[:-1])
        allowed = bounds(self.arrays, self.do.numpy(), dlse, self.wrt, exact)
        worst = 0.0
        for name in self.wrt:
            want = getattr(exact, name)
            compared = accuracy.compare(found[name].astype(want.dtype), want, allowed[name])
            assert compared.ok, f"d{name}: {compared}\n{self.arrays.case}"
            worst = max(worst, compared.ratio)
        return worst


def some_of(pick: random.Random, arrays: Arrays) -> tuple[str, ...]:
    """Pick some of the arguments that have gradients."""
    names = ["q", "k", "v", "scale"]
    names += [name for name in ("sinks", "alibi_slopes") if name in arrays.small()]
    if "bias" in arrays.small() and arrays.case.bias_dtype in DTYPES:
        names.append("bias")
    chosen = [name for name in names if pick.random() < 0.7]
    pick.shuffle(chosen)
    return tuple(chosen or names)


# More than 2**40 times what dP can be in float32.
FINITE = ("normal", "x30", "equal", "outlier", "subnormal", "level", "integers")


@dataclass(frozen=True)
class Family:
    """Problems whose kernels take a bounded number of builds."""

    dtypes: tuple[str, ...]
    dims: tuple[int, ...]
    examples: int
    rows: int = 80


FAMILIES = {
    "every dtype": Family(("float16", "bfloat16", "float32", "float64"), (32,), 8),
    "wide": Family(("float32", "float64"), (64, 128, 256), 4, rows=40),
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_gradients_of_random_problems_are_within_their_bounds(
    kernel: str, name: str, record_property: Callable[[str, object], None]
) -> None:
    family = FAMILIES[name]
    worst = dict.fromkeys(family.dtypes, 0.0)
    total = 0

    def draw(dtype: str, strategy: st.SearchStrategy[Case]) -> None:
        @own_draws(f"gradients {kernel} {name} {dtype}")
        @settings(max_examples=family.examples)
        @given(strategy)
        def one(case: Case) -> None:
            nonlocal total
            total += 1
            if case.values not in FINITE:
                case = replace(case, values="normal")
            pick = random.Random(case.seed + 1)
            problem = Backward.of(case, dlse=pick.random() < 0.5)
            found = problem.run(
                kernel,
                schedule=some_schedule(case.seed),
                grid=pick.choice((None, 1, 2)),
                layouts={argument: pick.choice(OUT_LAYOUTS) for argument in "qkv"},
            )
            worst[dtype] = max(worst[dtype], problem.check(found))

        one()

    for dtype in family.dtypes:
        draw(
            dtype,
            cases(dtype, rows=family.rows, dims=family.dims, options=few_kinds(), mixed=True),
        )
    assert total >= len(family.dtypes) * family.examples * 9 // 10
    ratios = ", ".join(f"{dtype} {ratio:.3f}" for dtype, ratio in worst.items())
    record_property("drawn", f"{total} problems of gradients, worst error / bound: {ratios}")
