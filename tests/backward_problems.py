"""Problems of the backward pass: a case, the gradients of its results, and what is wanted of it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from backward_bounds import bounds
from cupy_flash import accuracy, reference
from cupy_flash.accuracy import accumulation
from layouts import LAYOUTS, Strided
from option_arrays import placed
from problems import DTYPES, Arrays, Case, result_dtype

Array = np.ndarray[Any, Any]


def names_of(case: Case) -> tuple[str, ...]:
    """Return what a case has gradients of."""
    given = {
        "bias": case.bias is not None and case.bias_dtype in DTYPES,
        "sinks": case.sinks is not None,
        "alibi_slopes": case.alibi is not None,
    }
    return ("q", "k", "v", *(name for name, there in given.items() if there), "scale")


def drawn_gradients(arrays: Arrays, pick: random.Random) -> tuple[Strided, Strided | None]:
    """Draw do and perhaps dlse, NaN where they may not matter, in any layout."""
    case, options = arrays.case, arrays.options()
    exact = reference.attention(*(x.numpy() for x in arrays.inputs().values()), **options)
    rng = np.random.default_rng(case.seed + 1)
    do, dlse = (rng.standard_normal(x.shape) for x in (exact.out, exact.lse))
    do[exact.visible == 0] = dlse[np.isneginf(exact.lse)] = np.nan
    dtype = result_dtype(case)
    if case.values == "large" and dtype != "float16":
        # v is at the dtype's largest, and do @ v.T has to stay below it.
        do *= 2.0**-60
    layouts = [layout for layout in LAYOUTS if layout != "broadcast"]
    given = placed(do.astype(DTYPES[dtype]), pick.choice(layouts))
    if pick.random() < 0.4:
        return given, None
    return given, placed(dlse.astype(accumulation(dtype)), pick.choice(layouts))


@dataclass
class Backward:
    """A case with the gradients of out and lse, and the arguments whose gradients are wanted."""

    arrays: Arrays
    do: Strided
    dlse: Strided | None
    wrt: tuple[str, ...]

    @classmethod
    def of(cls, case: Case, wrt: tuple[str, ...] | None = None) -> Backward:
        """Draw them; without `wrt`, some of the arguments that have gradients, in any order."""
        pick, arrays = random.Random(case.seed), case.build()
        do, dlse = drawn_gradients(arrays, pick)
        if wrt is None:
            names = names_of(case)
            chosen = [name for name in names if pick.random() < 0.7]
            pick.shuffle(chosen)
            wrt = tuple(chosen or names)
        return cls(arrays, do, dlse, wrt)

    def check(self, found: dict[str, Array], family: str | None = None, lost: float = 0.0) -> float:
        """Raise AssertionError unless the gradients are right; return the worst error / bound.

        `family` is that of the kernels, `lost` what their products may be off by themselves.
        """
        arguments = {name: x.numpy() for name, x in self.arrays.inputs().items()}
        do, dtype = self.do.numpy(), result_dtype(self.arrays.case)
        dlse = None if self.dlse is None else self.dlse.numpy()
        exact = reference.attention_backward(
            do, *arguments.values(), dlse=dlse, wrt=self.wrt, **self.arrays.options()
        )
        arguments |= self.arrays.options()
        dtypes = {name: x.dtype for name, x in found.items()}
        given = np.zeros(do.shape[:-1]) if dlse is None else dlse
        allowed = bounds(arguments, do, given, exact, dtype, dtypes, family, lost)
        worst = 0.0
        for name in self.wrt:
            want = getattr(exact, name)
            compared = accuracy.compare(found[name].astype(want.dtype), want, allowed[name])
            assert compared.ok, f"d{name}: {compared}\n{self.arrays.case}"
            worst = max(worst, compared.ratio)
        return worst
