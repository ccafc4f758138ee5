"""Kernel regression: the mean and spread of what follows, by attention over everything measured.

Nadaraya and Watson (1964) estimate y at a place x by the mean of all measured y_j, weighted by a
Gaussian kernel of their distances, exp(-(x - x_j)^2 / 2 h^2). That is softmax attention. Of the
exponent, x x_j / h^2 is a product of query and key, -x_j^2 / 2 h^2 a bias of the key, and
-x^2 / 2 h^2 is the same for the whole row, so that the softmax cancels it. A measurement that
counts w times adds log w to the bias. With the columns y and y^2 in v, one call gives the mean and
the variance.

The data are the 442 patients of Efron et al. (2004), which scikit-learn ships: the progression of
diabetes within a year, by body mass index. The index has one decimal, so many patients share one;
each distinct index is a key, its weight the number of patients. The large size has a million
keys: patients drawn again, their index anywhere within its rounding, with the random weights of
the Bayesian bootstrap (Rubin, 1981). The matrix of its weights would take a terabyte.

    python examples/kernel_regression.py --picture regression.png
    python examples/kernel_regression.py --cpu
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import cupy_flash as cf
from setting import Setting, setting, verdict

Array = np.ndarray[Any, Any]
BANDWIDTH = 1.5  # kg / m^2
CHECKED = 64  # rows that are computed a second time


def patients(small: bool) -> tuple[Array, Array, Array]:
    """Return body mass index, progression and weight of every patient."""
    from sklearn.datasets import load_diabetes

    data = load_diabetes(scaled=False)
    x, y = data.data[:, data.feature_names.index("bmi")], data.target
    if small:
        return x, y, np.ones(len(x))
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(x), size=2**20)
    return x[drawn] + rng.uniform(-0.05, 0.05, len(drawn)), y[drawn], rng.exponential(size=2**20)


def regression(s: Setting, places: Array, x: Array, y: Array, weight: Array) -> tuple[Array, Array]:
    """Return the mean of y, and its standard deviation, at each place."""
    # Around 0, scores and squares are small, and so is what is rounded of them.
    middle, centre = x.mean(), y.mean()
    distinct, which = np.unique((x - middle) / BANDWIDTH, return_inverse=True)
    total = np.bincount(which, weight)
    moments = [np.bincount(which, weight * (y - centre) ** power) / total for power in (1, 2)]
    out = cf.attention(
        s.array((places - middle)[:, None] / BANDWIDTH),
        s.array(distinct[:, None]),
        s.array(np.stack(moments, axis=1)),
        scale=1.0,
        bias=s.array(np.log(total) - distinct**2 / 2),
    )
    mean, square = s.numpy(out).T
    return centre + mean, np.sqrt(square - mean**2)


def direct(place: float, x: Array, y: Array, weight: Array) -> tuple[float, float]:
    """Return the same at one place by the definition, patient by patient."""
    w = weight * np.exp(-(((place - x) / BANDWIDTH) ** 2) / 2)
    mean = (w * y).sum() / w.sum()
    return mean, np.sqrt((w * (y - mean) ** 2).sum() / w.sum())


def draw(path: Path, places: Array, mean: Array, spread: Array, x: Array, y: Array) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axis = figure.subplots()
    axis.scatter(x, y, s=8, color="#999999", label="patients")
    band = (mean - spread, mean + spread)
    label = "one standard deviation"
    axis.fill_between(places, *band, color="#1f77b4", alpha=0.2, lw=0, label=label)
    axis.plot(places, mean, color="#1f77b4", label="mean")
    axis.set_xlabel("body mass index (kg/m²)")
    axis.set_ylabel("progression within a year")
    axis.legend(loc="upper left", frameon=False)
    figure.savefig(path, dpi=150)


def main(argv: Sequence[str] | None = None) -> int:
    s = setting(__doc__, argv, draws=True)
    x, y, weight = patients(s.small)
    places = np.linspace(x.min(), x.max(), 400 if s.small else 2**17)
    mean, spread = regression(s, places, x, y, weight)
    print(f"{len(places)} places, {len(x)} patients, bandwidth {BANDWIDTH} kg/m²")
    for i in np.linspace(0, len(places) - 1, 5).astype(int):
        print(f"  index {places[i]:.1f}: {mean[i]:.1f}, give or take {spread[i]:.1f}")
    if s.picture:
        drawn = np.linspace(0, len(places) - 1, 400).astype(int)
        people = patients(small=True)[:2]
        draw(s.picture, places[drawn], mean[drawn], spread[drawn], *people)

    checked = np.linspace(0, len(places) - 1, CHECKED).astype(int)
    expected = np.array([direct(place, x, y, weight) for place in places[checked]])
    errors = np.abs(np.stack([mean, spread], axis=1)[checked] - expected).max(axis=0)
    # A score is rounded in units of its parts, and sums of n terms by at most n units.
    parts = 1.5 * (np.abs(x - x.mean()).max() / BANDWIDTH) ** 2
    unit = np.finfo(float).eps / 2 * (8 * parts + len(x))
    largest = np.abs(y - y.mean()).max()
    least = expected[:, 1].min()
    return verdict(
        error_of_the_mean=(errors[0], 2 * unit * largest),
        # Half the error of the variance over the deviation.
        error_of_the_spread=(errors[1], 3 * unit * largest**2 / least),
    )


if __name__ == "__main__":
    raise SystemExit(main())
