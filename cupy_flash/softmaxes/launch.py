"""A softmax on a GPU: plan the call and launch it on the current stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cupy_flash import device as devices
from cupy_flash.arrays import describe, to_dtype
from cupy_flash.launch import BASE, few_or_all, make_step, overlap_pairs, place, run
from cupy_flash.plan import Fresh, Key, Plan, keep
from cupy_flash.softmaxes.params import (
    PARAMS_DTYPE,
    WORKSPACE,
    operands,
    softmax_launches,
    workspace_bytes,
)
from cupy_flash.softmaxes.problem import SoftmaxProblem, same_elements
from cupy_flash.softmaxes.select import SoftmaxChoice, choose_softmax
from cupy_flash.step import Step


def forward(problem: SoftmaxProblem, x: Any, out: Any, key: Key | None = None) -> Any:
    """Plan a checked call of CuPy arrays, run the plan, and keep it for calls with the same key.

    Parameters
    ----------
    problem : SoftmaxProblem
    x : array
        The input.
    out : array or None
        Where to write; allocated where it is None.
    key : tuple, optional
        Of `plan.recall`. None keeps nothing.

    Returns
    -------
    array
        `out`, or the one that was allocated.
    """
    index = problem.device or 0
    choice = choose_softmax(problem, devices.actual(index))
    given = {"x": x} if out is None else {"x": x, "o": out}
    with devices.import_cupy().cuda.Device(index):
        plan = make_plan(problem, choice, given)
        # A plan of x's elements under another name has no pairs. With the same key x and out may
        # also lie so that some elements are shared.
        if out is None or out is x or plan.pairs:
            keep(key, plan)
        return run(plan, [array.data.ptr for array in given.values()], out, None)[0]


def make_plan(problem: SoftmaxProblem, choice: SoftmaxChoice, given: Mapping[str, Any]) -> Plan:
    """Plan a call of the arrays `given`, by operand; without "o" the result is fresh."""
    infos = {name: describe(name, x) for name, x in given.items()}
    in_place = "o" in infos and same_elements(infos["x"], infos["o"])
    fresh = None
    if "o" not in given:
        dtype = to_dtype(problem.dtype)
        size = problem.size * dtype.itemsize
        fresh = Fresh(problem.shape, dtype, size, problem.o_strides)
    workspace = workspace_bytes(problem, choice) if problem.size else 0
    return Plan(
        device=problem.device or 0,
        pairs=() if in_place else tuple(overlap_pairs(infos)),
        out=fresh,
        lse=None,
        steps=few_or_all(_steps(problem, choice)),
        workspace=(workspace,) * len(WORKSPACE) if workspace else (),
    )


def _steps(problem: SoftmaxProblem, choice: SoftmaxChoice) -> Iterator[Step]:
    names = operands(choice)
    places = [*enumerate(place(PARAMS_DTYPE, name) for name in names)]
    for launch in softmax_launches(problem, choice, dict.fromkeys(names, BASE)):
        yield make_step(launch.variant, problem.device or 0, launch.params, launch.grid, places)
