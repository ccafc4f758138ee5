"""The exact probes of gradients on the blocked NumPy path."""

from __future__ import annotations

import numpy as np
import pytest

from gradient_paths import QKV, GradientPath
from gradient_probes import PROBES
from numpy_gradients import NUMPY, gradients
from problems import DTYPES


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("probe", PROBES)
def test_probe(probe, dtype):
    PROBES[probe](NUMPY, dtype, 20, 24)


def a_constant_more(do, q, k, v, wrt=QKV, **options):
    found = gradients(do, q, k, v, wrt=wrt, **options)
    return {name: x + x.dtype.type(1e-3) for name, x in found.items()}


def from_batch_0(do, q, k, v, wrt=QKV, **options):
    found = gradients(do, q, k, v, wrt=wrt, **options)
    return {name: np.broadcast_to(x[:1], x.shape) if x.ndim > 3 else x for name, x in found.items()}


def of_constant_do(do, q, k, v, wrt=QKV, **options):
    return gradients(do + do.dtype.type(1), q, k, v, wrt=wrt, **options)


FAULTS = {
    "a constant more": (
        a_constant_more,
        ("one key", "zero do", "P2 non-interference", "hidden bias", "sums", "linearity"),
    ),
    "the first entry for all": (from_batch_0, ("P4 permutations",)),
    "do and one": (of_constant_do, ("one key", "zero do", "linearity")),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_probes_notice(fault):
    wrong, noticing = FAULTS[fault]
    for probe in noticing:
        with pytest.raises(AssertionError):
            PROBES[probe](GradientPath(wrong, None), "float64", 20, 24)
