"""Random problems of every shape, layout, dtype, option and value through the emulated kernels."""

from __future__ import annotations

import itertools
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cupy_flash.params import OPERANDS, launches
from cupy_flash.products import FMA, SIX_BFLOAT16, THREE_BFLOAT16
from drawn import Coverage
from emulated_attention import attention, some_schedule
from layouts import Strided, strided
from probe_tools import assert_same_bits
from problems import DTYPES, Arrays, Case
from strategies import FOUND, cases, few_kinds, kinds, own_draws
from tolerance import check

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]

KERNELS = ("naive", "simt")


@dataclass(frozen=True)
class Family:
    """Problems whose kernels take a bounded number of builds: half a second each.

    `examples` problems for each of `dtypes`; every two options meet in at least `pairs` of them.
    """

    dtypes: tuple[str, str, str, str]
    dims: Sequence[int]
    options: Sequence[dict[str, Any]] = few_kinds()
    mixed: bool = False
    rows: int = 80
    examples: int = 30
    pairs: int = 0
    kernels: Sequence[str] = KERNELS

    def cases(self, dtype: str) -> st.SearchStrategy[Case]:
        return cases(dtype, rows=self.rows, dims=self.dims, options=self.options, mixed=self.mixed)


NO_LENGTHS = few_kinds(lengths=(None,))
FAMILIES = {
    "every dtype": Family(tuple(DTYPES), (32,), mixed=True, examples=45, pairs=1),
    "wide": Family((*("float32",) * 3, "float64"), (64, 128, 256), NO_LENGTHS, examples=18),
    "tensor cores": Family(
        ("float16", "bfloat16") * 2,
        (32, 64, 128),
        rows=150,
        examples=45,
        pairs=1,
        kernels=("sm80",),
    ),
    "every dtype of options": Family(
        ("float32",) * 4, (32,), kinds(length_dtype=("int64",)), rows=140, kernels=KERNELS
    ),
}


# What simt multiplies float32 with.
ALL_WAYS = (FMA, SIX_BFLOAT16, THREE_BFLOAT16)


def some_arch(case: Case) -> int:
    """Pick a GPU by options, of which each kind has few kernels, so that few more are built."""
    if case.dtypes[0] not in ("float32", "float64"):
        return 90
    return (90, 80, 90, 86)[zlib.crc32(_kind(case)) % 4]


def some_precision(case: Case) -> str | None:
    """Pick one in the same way: half of float32 is tf32."""
    if case.dtypes != ("float32",) * 3:
        return None
    return "tf32" if zlib.crc32(_kind(case)) // 4 % 2 == 0 else None


def _kind(case: Case) -> bytes:
    given = (case.mask, case.bias, case.softcap, case.alibi, case.sinks, case.window)
    dtypes = (case.bias_dtype, case.alibi_dtype, case.sinks_dtype, case.lengths)
    kind = ([x is None for x in given], dtypes, case.causal, max(case.d, case.p) > 64)
    return repr(kind).encode()


@pytest.mark.parametrize(
    ("kernel", "name"),
    [(kernel, name) for name, family in FAMILIES.items() for kernel in family.kernels],
)
def test_random_problems_are_within_their_bounds(
    kernel: str, name: str, record_property: Callable[[str, object], None]
) -> None:
    family = FAMILIES[name]
    coverage = Coverage()
    worst = dict.fromkeys(family.dtypes, 0.0)
    multiplied: Counter[str] = Counter()

    def draw(number: int, dtype: str) -> None:
        @own_draws(f"{kernel} {name} {number}")
        @settings(max_examples=family.examples)
        @given(family.cases(dtype))
        def one(case: Case) -> None:
            coverage.add(case)
            case = replace(case, precision=some_precision(case))
            arrays = case.build()
            arch = some_arch(case) if kernel == "simt" else 90
            result = attention(arrays, kernel, schedule=some_schedule(case.seed), arch=arch)
            products = result.variant.products
            multiplied[products.how] += 1
            ratio = check(arrays, result.out, result.lse, kernel, products)
            worst[dtype] = max(worst[dtype], ratio)

        one()

    for number, dtype in enumerate(family.dtypes):
        draw(number, dtype)
    ratios = ", ".join(f"{dtype} {ratio:.3f}" for dtype, ratio in worst.items())
    how = ", ".join(f"{how} {count}" for how, count in multiplied.items())
    record_property("drawn", coverage.report(f"worst error / bound: {ratios}; {how}"))
    if kernel == "simt" and "float32" in family.dtypes:
        assert min(multiplied[products.how] for products in ALL_WAYS) >= 3
    coverage.check(
        4 * family.examples * 9 // 10,
        pairs=family.pairs,
        lengths=tuple({str(kind["lengths"]) for kind in family.options}),
        dtype=tuple(dict.fromkeys(family.dtypes)),
    )


SMALL_GRID = Case((2,), 3, 1, 70, 40, 9, 11, ("float32",) * 3)
CAUSAL: dict[str, Any] = {"causal": True, "lengths": "both"}


@pytest.mark.parametrize("case", FOUND, ids=lambda case: f"{case.dtypes[0]} {case.values}")
@pytest.mark.parametrize("kernel", [*KERNELS, "sm80"])
def test_what_random_draws_found_stays_right(kernel: str, case: Case) -> None:
    arrays = case.build()
    kernel = kernel if case.suits(kernel) else "naive"
    result = attention(arrays, kernel)
    check(arrays, result.out, result.lse, kernel)


@pytest.mark.parametrize("options", [{}, CAUSAL], ids=["plain", "causal with lengths"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_fewer_blocks_than_tiles_give_the_same_bits(kernel: str, options: dict[str, Any]) -> None:
    arrays = replace(SMALL_GRID, **options).build()
    want = attention(arrays, kernel)
    check(arrays, want.out, want.lse, kernel)
    for grid, schedule in itertools.product((1, 2, 5), (0, 3, 4)):
        got = attention(arrays, kernel, grid=grid, schedule=schedule)
        what = f"{grid} blocks in schedule {schedule}"
        assert_same_bits((got.out, got.lse), (want.out, want.lse), what)


@pytest.mark.parametrize("kernel", KERNELS)
def test_thread_schedules_give_the_same_bits(kernel: str) -> None:
    arrays = replace(SMALL_GRID, n=70, causal=True, dtypes=("bfloat16",) * 3).build()
    want = attention(arrays, kernel)
    for schedule in (1, 2, 3, 4):
        got = attention(arrays, kernel, schedule=schedule)
        assert_same_bits((got.out, got.lse), (want.out, want.lse), f"schedule {schedule}")


def in_order(x: Strided, order: Sequence[int]) -> Strided:
    """Permute the axes of an array without moving its elements."""
    shape, strides = (tuple(axes[i] for i in order) for axes in (x.shape, x.strides))
    return replace(x, shape=shape, strides=strides)


@pytest.mark.parametrize("lengths", [None, "both"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_batch_axes_that_do_not_merge_take_several_launches(
    kernel: str, lengths: str | None
) -> None:
    batch = (2, 3, 1, 2, 2, 3, 2)
    case = Case(batch, 2, 1, 5, 6, 4, 3, ("float32",) * 3, lengths=lengths)
    reverse = (*range(len(batch))[::-1], *range(len(batch), len(batch) + 3))
    arrays = case.build()
    rng = np.random.default_rng(5)
    for name, x in arrays.inputs().items():
        backwards = strided(tuple(x.shape[i] for i in reverse), x.buffer.dtype, "contiguous")
        moved = x if name == "k" else in_order(backwards, reverse)
        moved.numpy()[...] = rng.standard_normal(x.shape)
        setattr(arrays, name, moved)
    result = attention(arrays, kernel)
    check(arrays, result.out, result.lse, kernel)
    calls = list(launches(result.problem, result.variant, dict.fromkeys(OPERANDS, 0)))
    assert len(calls) == 6, "four of the six axes with more than one entry share a launch"


@pytest.mark.parametrize("options", [{}, {"causal": True}])
@pytest.mark.parametrize("kernel", KERNELS)
def test_one_array_may_be_queries_keys_and_values(kernel: str, options: dict[str, bool]) -> None:
    case = Case((2,), 3, 3, 37, 37, 20, 20, ("float32",) * 3, **options)
    x = case.build().q
    arrays = Arrays(case, x, x, x, None, None)
    result = attention(arrays, kernel, schedule=3)
    check(arrays, result.out, result.lse, kernel)
