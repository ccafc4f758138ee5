"""The softmax kernels on the CPU: random problems, edges, rising maxima, what must not matter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from cupy_flash.arrays import describe
from cupy_flash.device import assumed
from cupy_flash.softmaxes.problem import make_softmax_problem
from cupy_flash.softmaxes.select import PART_TILE, SoftmaxChoice, choose_softmax
from emulated_attention import some_schedule
from emulated_softmax import as_cupy, run, softmax
from layouts import OUT_LAYOUTS, strided
from problems import DTYPES
from softmaxes import (
    CAPACITIES,
    METHODS,
    VALUES,
    SoftmaxCase,
    check_softmax,
    drawn,
    softmax_cases,
)
from strategies import own_draws

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]

EXAMPLES = 60
every_method = pytest.mark.parametrize("method", METHODS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


@every_dtype
def test_random_softmaxes_are_within_their_bounds(
    dtype: str, record_property: Callable[[str, object], None]
) -> None:
    drawn_values: Counter[str] = Counter()
    worst = 0.0

    @own_draws(f"softmax {dtype}")
    @settings(max_examples=EXAMPLES)
    @given(softmax_cases(dtype, 70_000 // DTYPES[dtype].itemsize))
    def one(case: SoftmaxCase) -> None:
        nonlocal worst
        drawn_values.update([case.values, case.method, case.layout])
        worst = max(
            worst, check_softmax(*softmax(case, schedule=some_schedule(case.seed)), case.axis)
        )

    one()
    report = ", ".join(f"{what} {count}" for what, count in sorted(drawn_values.items()))
    record_property("drawn", f"worst error / bound {worst:.3f}: {report}")
    assert {*VALUES, *METHODS} <= set(drawn_values)


@pytest.mark.parametrize("size", CAPACITIES)
@every_method
@every_dtype
def test_both_sides_of_every_edge(dtype: str, method: str, size: int) -> None:
    for change in (-1, 0, 1):
        n = size // DTYPES[dtype].itemsize + change
        x, out = softmax(SoftmaxCase((3, n), -1, dtype, method, seed=n))
        check_softmax(x, out, -1)


def choice_of(x: np.ndarray, method: str) -> SoftmaxChoice:
    problem = make_softmax_problem(as_cupy(describe("x", x)), -1, method)
    return choose_softmax(problem, assumed(90))


def rising(dtype: str, n: int, step: int) -> np.ndarray:
    """Make rows whose maximum rises in every `step` columns, by more than the columns differ."""
    rng = np.random.default_rng(n)
    blocks = np.arange(n) // step
    x = rng.random((2, n)) + 1.5 * (blocks - blocks[-1])
    x[1] *= 0.1
    return x.astype(DTYPES[dtype])


# A thread's update, a warp, a tile of 512 threads and more than one part.
@pytest.mark.parametrize("step", [1, 4, 32, 100, 512, 4096])
@every_method
@every_dtype
def test_a_maximum_that_rises_in_every_block(dtype: str, method: str, step: int) -> None:
    for n in (100, 1500, 70_000 // DTYPES[dtype].itemsize):
        x = rising(dtype, n, step)
        out, _ = run(x, method=method)
        check_softmax(x, out, -1)
        backwards, _ = run(x[:, ::-1], method=method)
        check_softmax(x[:, ::-1], backwards, -1)


@every_method
@every_dtype
def test_a_maximum_that_rises_in_every_tile_of_every_part(dtype: str, method: str) -> None:
    """A part of several tiles, as only rows of millions have them."""
    columns = PART_TILE.capacity // DTYPES[dtype].itemsize
    n = 9 * columns + 37
    x = rising(dtype, n, columns)
    choice = replace(choice_of(x, method), parts=2, part_columns=5 * columns)
    out, _ = run(x, method=method, choice=choice)
    check_softmax(x, out, -1)


@every_dtype
def test_the_maximum_may_be_anywhere(dtype: str) -> None:
    n = 40_000 // DTYPES[dtype].itemsize
    for method in METHODS:
        for place in (0, 1, 31, 32, 511, n // 2, n - 1):
            x = drawn((2, n), dtype, "normal", place).astype(DTYPES[dtype])
            x[:, place] = 15
            check_softmax(x, run(x, method=method)[0], -1)


@every_method
@every_dtype
def test_layout_out_rows_and_schedule_change_no_bit(dtype: str, method: str) -> None:
    for n in (5, 33, 700, 70_000 // DTYPES[dtype].itemsize):
        rows = drawn((3, n), dtype, "x30", n).astype(DTYPES[dtype])
        want = run(rows, method=method)[0].tobytes()
        for layout in (*OUT_LAYOUTS, "pitch 8"):
            x, out = (strided(rows.shape, rows.dtype, layout) for _ in range(2))
            x.numpy()[...] = rows
            for schedule in (3, 4):
                got, _ = run(x.numpy(), method=method, out=out.numpy(), schedule=schedule)
                assert got.tobytes() == want, (layout, schedule, n)
        alone = b"".join(run(row[None], method=method)[0].tobytes() for row in rows)
        assert alone == want, "a row depends on the others"
        assert run(rows.T, 0, method)[0].T.tobytes() == want, "the other axis"
        assert run(rows, method=method, grid=1)[0].tobytes() == want, "one block"


@every_method
def test_in_place(method: str) -> None:
    for n in (5, 300, 20_000):
        for shift in (0, 1):
            buffer = np.empty(2 * n + shift, np.float32)
            x = buffer[shift:].reshape(2, n)
            x[...] = drawn((2, n), "float32", "normal", n)
            before = x.copy()
            run(x, method=method, out=x)
            check_softmax(before, x, -1)


@every_method
@every_dtype
def test_rows_with_nan_and_infinity(dtype: str, method: str) -> None:
    for n in (7, 500, 70_000 // DTYPES[dtype].itemsize):
        x = drawn((6, n), dtype, "normal", n).astype(DTYPES[dtype])
        x[0, n // 2] = np.nan
        x[1] = -np.inf
        x[1, -1] = np.nan
        x[2, 0] = np.inf
        x[3] = -np.inf
        x[4, : n - 1] = -np.inf
        x[5, n // 2 :] = -np.inf
        out, _ = run(x, method=method)
        assert np.isnan(out[:3].astype(float)).all()
        assert (out[3] == 0).all()
        assert (out[4, :-1] == 0).all()
        assert out[4, -1] == 1
        check_softmax(x[3:], out[3:], -1)


@every_method
def test_rows_of_more_axes_than_a_launch_has(method: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 2, 1, 2, 3, 9), np.float32).transpose(5, 1, 3, 4, 2, 0, 6)
    assert_ran(x, -1, method)
    assert_ran(x, 1, method)
    long = rng.standard_normal((2, 2, 2, 2, 2, 17_000), np.float32).transpose(4, 3, 2, 1, 0, 5)
    assert_ran(long, -1, method)


def assert_ran(x: np.ndarray, axis: int, method: str) -> None:
    check_softmax(x, run(x, axis, method)[0], axis)
