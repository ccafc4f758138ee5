"""The exact probes of gradients on the kernels' own source, emulated, and the max and rms rule."""

from __future__ import annotations

import numpy as np
import pytest

from emulated_gradients import emulated_path
from gradient_paths import QKV, draw_like
from gradient_probes import PROBES
from gradient_statistics import check_statistics
from problems import DTYPES, ONE_DTYPE

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]

# The others take a kernel for each option, of which `test_backward` builds some.
EMULATED = ("one key", "many equal terms", "P4 permutations", "row alone")


@pytest.mark.parametrize("probe", EMULATED)
@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        pytest.param(*one, marks=[pytest.mark.thorough] * (one[0] == "naive"))
        for one in ONE_DTYPE.items()
    ],
)
def test_probe(kernel: str, dtype: str, probe: str) -> None:
    PROBES[probe](emulated_path(kernel), dtype, 20, 24)


@pytest.mark.parametrize(
    ("kernel", "dtype"), [("sm80", "float16"), ("sm80", "bfloat16"), ("simt", "float32")]
)
def test_errors_are_those_of_an_unfused_computation(kernel: str, dtype: str) -> None:
    shapes = (2, 200, 64), (2, 200, 64), (1, 230, 64), (1, 230, 64)
    arrays = [draw_like(shape, DTYPES[dtype], seed) for seed, shape in enumerate(shapes)]
    found = emulated_path(kernel).gradients(*(x[None] for x in arrays), causal=True)
    numbers = {name: found[name][0].astype(np.float32) for name in QKV}
    check_statistics(np, numbers, [x.astype(np.float32) for x in arrays], dtype, 1 / 8, True)


def test_errors_of_many_rows_are_those_of_an_unfused_computation() -> None:
    """The first key's dv, to which 1,000 rows add, had 5.1 times its largest error in one sum."""
    m, d = 1000, 64
    rng = np.random.default_rng(m + d)
    shapes = (2, m, d), (2, m, d), (1, m, d), (1, m, d)
    arrays = [rng.standard_normal(shape, np.float32) for shape in shapes]
    found = emulated_path("simt").gradients(*(x[None] for x in arrays), causal=True)
    check_statistics(np, {name: found[name][0] for name in QKV}, arrays, "float32", 1 / 8, True)
