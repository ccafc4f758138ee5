"""Backward calls of drawn cases, compared with the oracle and its bounds."""

from __future__ import annotations

import random
from typing import Any

import ml_dtypes
import numpy as np

from backward_bounds import bounds
from backward_problems import drawn_gradients, names_of
from cupy_flash import attention, attention_backward, reference
from layouts import OUT_LAYOUTS, Strided, strided
from problems import Case, result_dtype

SENTINEL = 7.0


def compare(case: Case, *, in_place: bool = True) -> float:
    """Compute a case's gradients of everything, check them, return the worst error / bound."""
    pick = random.Random(repr(case))
    arrays = case.build()
    names = list(names_of(case))
    pick.shuffle(names)
    wrt = tuple(names)
    do, dlse = drawn_gradients(arrays, pick)
    options = arrays.options()
    q, k, v = (x.numpy() for x in arrays.inputs().values())
    o, lse = attention(q, k, v, return_lse=True, **options)
    inputs = {"q": q, "k": k, "v": v, **options}
    sources = inputs | {"scale": np.empty((), lse.dtype)}
    targets = {
        name: _target(sources[name], pick) if in_place and pick.random() < 0.5 else None
        for name in wrt
    }
    outs = tuple(None if x is None else x.numpy() for x in targets.values())
    given = {"dlse": None if dlse is None else dlse.numpy()}
    read = [x for x in (*inputs.values(), o, lse, do.numpy()) if isinstance(x, np.ndarray)]
    before = [x.tobytes() for x in read]
    got = attention_backward(
        do.numpy(),
        q,
        k,
        v,
        o,
        lse,
        wrt=wrt,
        out=outs if any_given(outs) else None,
        **given,
        **options,
    )
    assert [x.tobytes() for x in read] == before, "an input changed"
    assert got._fields == wrt
    for name, gradient, target in zip(wrt, got, targets.values(), strict=True):
        assert gradient.shape == sources[name].shape
        assert gradient.dtype == sources[name].dtype
        if target is not None:
            assert np.shares_memory(gradient, target.buffer) or not gradient.size
            sentinel = np.array(SENTINEL, target.buffer.dtype).tobytes()
            beside = target.outside().tobytes()
            assert beside == sentinel * (len(beside) // len(sentinel)), f"beside {name}"
    exact = reference.attention_backward(do.numpy(), q, k, v, wrt=wrt, **given, **options)
    zeros = np.zeros(lse.shape) if dlse is None else dlse.numpy()
    dtypes = {name: sources[name].dtype for name in wrt}
    call = {"q": q, "k": k, "v": v, **options}
    allowed = bounds(call, do.numpy(), zeros, exact, result_dtype(case), dtypes)
    return max(_ratio(n, got, exact, allowed, case) for n in wrt)


def any_given(outs: tuple[Any, ...]) -> bool:
    return any(x is not None for x in outs)


def _target(source: np.ndarray[Any, Any], pick: random.Random) -> Strided:
    values = np.full(source.shape, SENTINEL, source.dtype)
    layout = pick.choice(OUT_LAYOUTS)
    if values.ndim < 2:
        layout = "contiguous"
        x = strided((1,) * (2 - values.ndim) + values.shape, values.dtype, layout, SENTINEL)
        missing = 2 - values.ndim
        return Strided(x.buffer, x.shape[missing:], x.strides[missing:], x.start, layout)
    return strided(source.shape, source.dtype, layout, SENTINEL)


def _ratio(name: str, got: Any, exact: Any, allowed: dict[str, Any], case: Case) -> float:
    have, want = getattr(got, name), getattr(exact, name)
    assert not np.isnan(want).any(), (name, case)
    assert not np.isnan(have).any(), f"NaN in {name}: {case}"
    have = have.astype(want.dtype)
    # What the dtype can't hold is infinite; as far off as its largest number, but on that side.
    largest = want.dtype.type(ml_dtypes.finfo(getattr(got, name).dtype).max)
    reached = np.where(np.isinf(have), np.sign(have) * np.maximum(np.abs(want), largest), have)
    error = np.abs(reached - want).astype(float)
    ratio = float(np.max(error / allowed[name], initial=0))
    assert ratio <= 1, f"{name}: error / bound {ratio}: {case}"
    return ratio


def relative_errors(case: Case) -> dict[str, float]:
    """Return each gradient's largest error over its largest element."""
    arrays = case.build()
    names = names_of(case)
    options = arrays.options()
    q, k, v = (x.numpy() for x in arrays.inputs().values())
    o, lse = attention(q, k, v, return_lse=True, **options)
    rng = np.random.default_rng(case.seed)
    do, dlse = (rng.standard_normal(x.shape).astype(x.dtype) for x in (o, lse))
    got = attention_backward(do, q, k, v, o, lse, dlse=dlse, wrt=names, **options)
    exact = reference.attention_backward(do, q, k, v, dlse=dlse, wrt=names, **options)
    return {
        name: float(np.abs(have.astype(want.dtype) - want).max() / np.abs(want).max())
        for name, have, want in zip(names, got, exact, strict=True)
    }
