"""Problems of the backward pass: a case, the gradients of its results, and what is wanted of it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from cupy_flash import accuracy, reference
from gradient_bounds import bounds
from layouts import LAYOUTS, OUT_LAYOUTS, Strided, strided
from option_arrays import visible
from problems import DTYPES, Arrays, Case, result_dtype

Array = np.ndarray[Any, Any]


@dataclass
class Backward:
    """A case with the gradients of out and lse, and the arguments whose gradients are wanted."""

    arrays: Arrays
    do: Strided
    dlse: Array | None
    wrt: tuple[str, ...]

    @classmethod
    def of(cls, case: Case, wrt: tuple[str, ...] | None = None, dlse: bool = False) -> Backward:
        """Draw them; in rows that see no key they are NaN. Without `wrt`, of some arguments."""
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
            accumulate = accuracy.accumulation(dtype.name)
            of_lse = rng.standard_normal(do.shape[:-1]).astype(accumulate)
            # Of a row that sees no key lse is its sink.
            if case.sinks is None:
                of_lse[keyless] = np.nan
        return cls(arrays, do, of_lse, wrt or some_of(pick, arrays))

    def check(self, found: dict[str, Array]) -> float:
        """Raise AssertionError unless the gradients are right; return the worst error / bound."""
        inputs = [x.numpy() for x in self.arrays.inputs().values()]
        exact = reference.attention_backward(
            self.do.numpy(), *inputs, dlse=self.dlse, wrt=self.wrt, **self.arrays.options()
        )
        dlse = np.zeros(self.do.shape[:-1]) if self.dlse is None else self.dlse
        allowed = bounds(self.arrays, self.do.numpy(), dlse, self.wrt, exact)
        worst = 0.0
        for name in self.wrt:
            want = getattr(exact, name)
            compared = accuracy.compare(found[name].astype(want.dtype), want, allowed[name])
            assert compared.ok, f"d{name}: {compared}\n{self.arrays.case}"
            worst = max(worst, compared.ratio)
        return worst


def some_of(pick: random.Random, arrays: Arrays) -> tuple[str, ...]:
    """Pick some of the arguments that have gradients, in any order."""
    names = differentiable(arrays)
    chosen = [name for name in names if pick.random() < 0.7]
    pick.shuffle(chosen)
    return tuple(chosen or names)


def differentiable(arrays: Arrays) -> tuple[str, ...]:
    """Return the arguments that have gradients: a bias of integers has none."""
    given = arrays.small()
    names = ["q", "k", "v", "scale", *(x for x in ("sinks", "alibi_slopes") if x in given)]
    return (*names, "bias") if "bias" in given and arrays.case.bias_dtype in DTYPES else (*names,)
