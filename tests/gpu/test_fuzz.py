"""Random problems of every shape, layout, dtype, option and value on the GPU against float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drawn import Coverage
from gpu_attention import attention, family
from problems import DTYPES, KERNEL_DTYPES, KERNELS, Case
from strategies import FEW_DTYPES, FOUND, OPTION_AXES, cases, own_draws
from tolerance import check

pytestmark = pytest.mark.gpu


@dataclass(frozen=True)
class Fuzz:
    """`examples` problems for each of `dtypes`; each new kind of options is a kernel to compile."""

    kernel: str
    dtypes: Sequence[str]
    dims: Sequence[int]
    options: dict[str, Sequence[Any]]
    examples: int

    def rows(self, dtype: str) -> int:
        # The reference of float64 is long double, without BLAS: it takes most of the time.
        return 160 if dtype == "float64" else 300

    def cases(self, dtype: str) -> st.SearchStrategy[Case]:
        return cases(
            dtype,
            rows=self.rows(dtype),
            dims=self.dims,
            options=self.options,
            mixed=self.kernel != "sm80",
            batch_axes=6,
        )


# Few dtypes of options, and for sm80 fewer lengths: compiling takes most of the time.
FEW = OPTION_AXES | FEW_DTYPES
FUZZ = {
    "naive": Fuzz("naive", tuple(DTYPES), (32, 128, 300), OPTION_AXES, 300),
    "simt in 16 bits": Fuzz("simt", ("float16", "bfloat16"), (32, 64, 128, 256), FEW, 400),
    "simt": Fuzz("simt", ("float32", "float64"), (32, 64, 128, 256), FEW, 400),
    **{
        f"sm80 {dtype}": Fuzz(
            "sm80", (dtype,), (64, 128, 256), FEW | {"lengths": (None, "both")}, 550
        )
        for dtype in KERNEL_DTYPES["sm80"]
    },
}
# So many problems for every two values of the options.
PAIRS = 20


@pytest.mark.parametrize("case", FOUND, ids=lambda case: f"{case.dtypes[0]} {case.values}")
@pytest.mark.parametrize("kernel", [*KERNELS, None])
def test_what_random_draws_found_stays_right(kernel: str | None, case: Case) -> None:
    arrays = case.build()
    kernel = kernel if kernel and case.suits(kernel) else None
    check(arrays, *attention(arrays, kernel), family(arrays, kernel))


@pytest.mark.parametrize("name", FUZZ)
def test_random_problems_are_within_their_bounds(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    fuzz = FUZZ[name]
    coverage = Coverage()
    worst = 0.0

    def draw(dtype: str) -> None:
        @own_draws(f"{fuzz.kernel} {dtype}")
        @settings(max_examples=fuzz.examples)
        @given(fuzz.cases(dtype))
        def one(case: Case) -> None:
            nonlocal worst
            coverage.add(case)
            arrays = case.build()
            worst = max(worst, check(arrays, *attention(arrays, fuzz.kernel), fuzz.kernel))

        one()

    for dtype in fuzz.dtypes:
        draw(dtype)
    record_property("drawn", coverage.report(f"worst error / bound {worst:.3f}"))
    at_least = len(fuzz.dtypes) * fuzz.examples * 9 // 10
    lengths = tuple(map(str, fuzz.options["lengths"]))
    coverage.check(at_least, pairs=PAIRS, dtype=fuzz.dtypes, lengths=lengths)
