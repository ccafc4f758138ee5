"""Optimal transport by Sinkhorn's algorithm, whose inner step is attention's log-sum-exp.

Points x_i are to be moved to points y_j at the least mean cost (x - y)^2 / 2. Of all plans P whose
rows and columns sum to 1 / n, Sinkhorn's algorithm (Cuturi, 2013) finds the one of least cost plus
epsilon times its relative entropy, P_ij = exp((x_i y_j - f_i - g_j) / epsilon) / n^2. The
potentials follow from each other: f_i = epsilon log mean_j exp((x_i y_j - g_j) / epsilon), and g
from f likewise. That is lse, with x as q, y as k, 1 / epsilon as the scale, -g / epsilon - log n as
a bias of keys, and no values. In the last call y and y^2 are v: their means tell the cost. Steps
1.8 times as long as Sinkhorn's (Thibault et al., 2021) spare most of the iterations.

The smaller epsilon, the larger the scores, and the less float32 knows of the marginals.

On a line the least cost is that of moving the smallest x to the smallest y, and so on. The entropy
of a plan of n points is at most log n, so P costs at most epsilon log n more.

    python examples/optimal_transport.py --picture plan.png
    python examples/optimal_transport.py --cpu
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import cupy_flash as cf
from setting import Setting, setting, verdict

Array = np.ndarray[Any, Any]
EPSILON = 3e-3
LONG_STEP = 1.8
ITERATIONS = 160
CHECKED = 64  # rows at least of a step that are summed directly


class Transport:
    """Sinkhorn's iteration between two sets of n points, in one dtype."""

    def __init__(self, s: Setting, x: Array, y: Array, dtype: str) -> None:
        self.x, self.y = (s.array(points.astype(dtype)[:, None]) for points in (x, y))
        self.n, self.nothing = len(x), s.xp.empty((len(x), 0), dtype)
        self.f, self.g = s.xp.zeros(len(x), dtype), s.xp.zeros(len(x), dtype)

    def step(
        self, q: Any, k: Any, potential: Any, values: Any = None, epsilon: float = EPSILON
    ) -> tuple[Any, Any]:
        """Return the potential of q that follows from that of k, and the values' means."""
        values = self.nothing if values is None else values
        bias = -potential / epsilon - math.log(self.n)
        out, lse = cf.attention(q, k, values, scale=1 / epsilon, bias=bias, return_lse=True)
        return epsilon * lse, out

    def iterate(self, times: int, epsilon: float, length: float = 1.0) -> None:
        for _ in range(times):
            f, _ = self.step(self.x, self.y, self.g, epsilon=epsilon)
            self.f += length * (f - self.f)
            g, _ = self.step(self.y, self.x, self.f, epsilon=epsilon)
            self.g += length * (g - self.g)

    def solve(self) -> None:
        """Begin with a large epsilon, for which few steps are enough."""
        for power in range(6, 0, -1):
            self.iterate(5, EPSILON * 2**power)
        self.iterate(ITERATIONS, EPSILON, LONG_STEP)
        # An ordinary step, so that columns sum to 1 / n, whatever f is.
        self.iterate(1, EPSILON)


def directly(x: Array, y: Array, g: Array) -> Array:
    """Return the potential of x that follows from that of y, by its formula."""
    scores = (np.outer(x, y) - g) / EPSILON
    return EPSILON * (np.logaddexp.reduce(scores, axis=1) - np.log(len(y)))


def draw(path: Path, x: Array, y: Array, f: Array, g: Array, n: int) -> None:
    from matplotlib.figure import Figure

    plan = np.exp((np.outer(x, y) - f[:, None] - g) / EPSILON) / n**2
    figure = Figure(figsize=(6, 5), layout="constrained")
    axis = figure.subplots()
    mesh = axis.pcolormesh(y, x, plan * n, cmap="Blues", shading="nearest", rasterized=True)
    axis.plot(y, x, ".", color="#d62728", ms=3, label="the exact plan, by sorting")
    axis.set_xlabel("y")
    axis.set_ylabel("x")
    axis.legend(loc="upper left", frameon=False)
    figure.colorbar(mesh, label="share of x that goes to y")
    figure.savefig(path, dpi=150)


def main(argv: Sequence[str] | None = None) -> int:
    s = setting(__doc__, argv, draws=True)
    n = 128 if s.small else 32768
    x, y = np.random.default_rng(0).uniform(-1, 1, (2, n))
    y = 0.6 * y + 0.4 * y**3
    least = ((np.sort(x) - np.sort(y)) ** 2).mean() / 2
    print(f"{n} points, epsilon = {EPSILON:g}, least cost {least:.6f}")

    for dtype in ("float32", "float64"):
        plan = Transport(s, x, y, dtype)
        plan.solve()
        powers = s.xp.concatenate([plan.y, plan.y**2], axis=1)
        results = (plan.f, plan.g, *plan.step(plan.x, plan.y, plan.g, values=powers))
        f, g, again, means = (s.numpy(result).astype(float) for result in results)
        # The log of a row's sum, times n. With `again` in the place of f there is nothing amiss.
        amiss = np.abs(again - f).max() / EPSILON
        cost = (x**2 / 2 - x * means[:, 0] + means[:, 1] / 2).mean()
        print(f"  {dtype}: cost {cost:.6f}, sums of rows off by up to {amiss:.1e} of them")

    some = slice(None, None, n // CHECKED)
    error = np.abs(again[some] - directly(x[some], y, g)).max()
    if s.picture:
        i, j = (np.argsort(points)[:: max(1, n // 256)] for points in (x, y))
        draw(s.picture, x[i], y[j], f[i], g[j], n)
    # A step is rounded in units of the parts of its scores, and by a sum of n terms.
    parts = np.abs(x).max() * np.abs(y).max() + np.abs(g).max() + EPSILON * n
    return verdict(
        error_of_one_step=(error, 8 * np.finfo(float).eps * parts),
        sums_of_rows_off_by=(amiss, 1e-7),
        cost_above_the_least=(cost - least, EPSILON * np.log(n)),
        # Where columns don't quite sum to 1 / n, a plan may cost less, by what is amiss.
        cost_below_the_least=(least - cost, amiss * 2),
    )


if __name__ == "__main__":
    raise SystemExit(main())
