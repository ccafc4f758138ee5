"""Attention with a bias of pairs, as in models of proteins, and gradients of what makes the bias.

In AlphaFold's pair representation (Jumper et al., 2021) and its kin, how much residue i attends to
residue j depends on the pair: each head adds to the score a bias b_h(r_ij) of their distance. Here
b_h is a sum of Gaussians of r with weights of the head's own, on the C-alpha atoms of an alpha
helix (100 degrees and 1.5 angstrom from one residue to the next, 2.3 angstrom from the axis),
shaken a little. The bias has the shape (heads, n, n). attention_vjp gives the result and a function
of its gradients, and the gradient of the bias leads on, by the chain rule, to those of the
Gaussians' weights.

The result is compared with softmax by its formula; the gradients, with differences of the formula's
results along random directions.

    python examples/pair_bias.py
    python examples/pair_bias.py --cpu
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import cupy_flash as cf
from setting import setting, verdict

Array = np.ndarray[Any, Any]
CENTRES = np.linspace(4, 24, 6)  # angstrom, of the Gaussians
WIDTH = 4.0
DIRECTIONS = 3
STEP = 1e-4


def helix(residues: int, rng: np.random.Generator) -> Array:
    """Return the coordinates of the C-alpha atoms of a helix that isn't quite regular."""
    i = np.arange(residues)
    turn = np.deg2rad(100) * i
    atoms = np.stack([2.3 * np.cos(turn), 2.3 * np.sin(turn), 1.5 * i], axis=1)
    return atoms + 0.2 * rng.standard_normal((residues, 3))


def gaussians(xp: Any, atoms: Any) -> Any:
    """Return the Gaussians of all distances, (centres, n, n)."""
    distances = xp.sqrt(((atoms[:, None] - atoms) ** 2).sum(axis=-1))
    return xp.exp(-(((distances - xp.asarray(CENTRES)[:, None, None]) / WIDTH) ** 2) / 2)


def direct(q: Array, k: Array, v: Array, bias: Array) -> Array:
    """Return attention by its formula, with all scores in memory."""
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]) + bias
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights @ v / weights.sum(axis=-1, keepdims=True)


def main(argv: Sequence[str] | None = None) -> int:
    s = setting(__doc__, argv)
    heads, n, d = (4, 96, 16) if s.small else (8, 1024, 32)
    rng = np.random.default_rng(0)
    atoms = helix(n, rng)
    q, k, v, do = rng.standard_normal((4, heads, n, d))
    weights = 2 * rng.standard_normal((heads, len(CENTRES)))
    print(f"{n} residues, {heads} heads, {len(CENTRES)} Gaussians of the distance")

    basis = gaussians(s.xp, s.array(atoms))
    bias = (s.array(weights)[..., None, None] * basis).sum(axis=1)
    out, pullback = cf.attention_vjp(s.array(q), s.array(k), s.array(v), bias=bias)
    slopes = pullback(s.array(do), wrt=("q", "k", "v", "bias"))
    # What the bias is made of is a matter of the chain rule.
    of_weights = (slopes.bias[:, None] * basis).sum(axis=(2, 3))
    for head, (given, slope) in enumerate(zip(weights, s.numpy(of_weights), strict=True)):
        numbers = "  ".join(f"{a:+.1f} ({b:+7.2f})" for a, b in zip(given, slope, strict=True))
        print(f"  head {head}, weights (their slopes): {numbers}")

    numbers = {"q": q, "k": k, "v": v, "bias": s.numpy(bias)}
    found = {name: s.numpy(getattr(slopes, name)) for name in numbers}
    table = s.numpy(basis)
    expected = direct(**numbers)
    eps = np.finfo(float).eps
    scores = np.sqrt(d) * np.abs(q).max() * np.abs(k).max() + np.abs(numbers["bias"]).max()
    checks = {
        # Scores are rounded in units of their parts, sums of n weights by at most n units.
        "error_of_the_result": (
            np.abs(s.numpy(out) - expected).max(),
            4 * eps * (scores + n) * np.abs(v).max(),
        )
    }

    def slope_along(name: str, direction: Array) -> float:
        """Return the slope of (out * do).sum() by a central difference of the formula."""
        ends = []
        for sign in (1, -1):
            ends.append(direct(**{**numbers, name: numbers[name] + sign * STEP * direction}))
        return float(((ends[0] - ends[1]) * do).sum() / (2 * STEP))

    for name, x in numbers.items():
        checks[f"error_of_the_slope_along_{name}"] = compare(
            [rng.standard_normal(x.shape) for _ in range(DIRECTIONS)],
            found[name],
            lambda direction, name=name: slope_along(name, direction),
        )
    checks["error_of_the_slope_along_weights"] = compare(
        [rng.standard_normal(weights.shape) for _ in range(DIRECTIONS)],
        s.numpy(of_weights),
        lambda direction: slope_along("bias", np.tensordot(direction, table, axes=1)),
    )
    return verdict(**checks)


def compare(directions: list[Array], gradient: Array, slope: Any) -> tuple[float, float]:
    """Return the largest error of a gradient's slopes along directions, and what is allowed."""
    apart = max(abs((gradient * x).sum() - slope(x)) for x in directions)
    # A slope along a normally distributed direction is about as large as the gradient. What a
    # central difference is off by, STEP^2 / 6 third derivatives, is about half of STEP^2 of that.
    return float(apart), 10 * STEP**2 * float(np.sqrt((gradient**2).sum()))


if __name__ == "__main__":
    raise SystemExit(main())
