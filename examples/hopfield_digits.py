"""Associative memory: a modern Hopfield network restores handwritten digits from noise.

The network stores patterns x_1 ... x_N, the rows of X. A state s is updated by [1]_::

    s  <-  softmax(beta * s @ X.T) @ X

This is attention: the states are q, the patterns are both k and v, and beta is `scale`. A large
beta makes single patterns the fixed points, a small one averages over many. Every update lowers
the energy, whose first term is what `return_lse` gives::

    E(s) = -lse(beta * s @ X.T) / beta  +  s @ s / 2  +  constant

so the energy of all states costs no second pass over the patterns.

The patterns are scikit-learn's digits, less their mean, scaled to length 1. A state begins as a
pattern with normal noise of the same length as the pattern. It is retrieved if the network comes to
rest within 0.1 of the pattern.

The check: one update and its energy equal those of a direct softmax in float64, and no energy ever
rises by more than its rounding.

Run it::

    pip install scikit-learn
    python examples/hopfield_digits.py --picture digits.png
    python examples/hopfield_digits.py --cpu

References
----------
.. [1] Ramsauer et al., "Hopfield Networks is All You Need", arXiv:2008.02217
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import cupy_flash as cf
from setting import setting, verdict

Array = np.ndarray[Any, Any]
BETA, UPDATES, NOISE = 80.0, 8, 1.0


def update(states: Any, patterns: Any, beta: float) -> tuple[Any, Any]:
    """Return the states after one update, and their energies before it, less the constant."""
    new, lse = cf.attention(states, patterns, patterns, scale=beta, return_lse=True)
    return new, (states * states).sum(-1) / 2 - lse / beta


def direct_update(states: Array, patterns: Array, beta: float) -> tuple[Array, Array]:
    """Compute `update` in float64 with the whole matrix of weights."""
    states, patterns = states.astype(np.float64), patterns.astype(np.float64)
    weights = np.exp(beta * states @ patterns.T)
    total = weights.sum(-1)
    energies = (states * states).sum(-1) / 2 - np.log(total) / beta
    return weights @ patterns / total[:, None], energies


def draw(rows: dict[str, Array], mean: Array, picture: Path) -> None:
    """Draw a row of digits for each name."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.3, 0.75 * len(rows)), layout="constrained")
    for ax, (name, digits) in zip(figure.subplots(len(rows)), rows.items(), strict=True):
        ax.set_ylabel(name, rotation=0, ha="right", va="center")
        squares = np.pad((digits + mean).reshape(-1, 8, 8), ((0, 0), (0, 0), (0, 1)))
        ax.imshow(np.concatenate(list(squares), axis=1), cmap="gray_r", vmin=0, vmax=16)
        ax.set(xticks=[], yticks=[])
    figure.savefig(picture, dpi=150)


def main(argv: Sequence[str] | None = None) -> int:
    """Store digits, restore them from noise, and check an update and the energies."""
    here = setting(__doc__, argv, draws=True)
    xp = here.xp
    pixels = load_digits().data[:: 4 if here.small else 1]
    mean = pixels.mean(0)
    length = np.linalg.norm(pixels - mean, axis=1, keepdims=True)
    patterns = here.array(((pixels - mean) / length).astype(np.float32))
    count, dim = patterns.shape
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(1 if here.small else 32, count, dim)) * NOISE / np.sqrt(dim)
    noisy = (patterns + here.array(noise.astype(np.float32))).reshape(-1, dim)
    originals = xp.broadcast_to(patterns, noise.shape).reshape(-1, dim)

    state, energies, kept = noisy, [], []
    for _ in range(UPDATES):
        state, energy = update(state, patterns, BETA)
        energies.append(energy)
        kept.append((xp.linalg.norm(state - originals, axis=1) < 0.1).mean())
    energies = here.numpy(xp.stack(energies))
    print(f"{count} patterns, {len(noisy)} states, noise as long as a pattern, beta {BETA:g}")
    for i in range(UPDATES):
        print(
            f"update {i + 1}: energy from {energies[i].mean():.4f}, {float(kept[i]):.1%} retrieved"
        )

    some = here.numpy(noisy[:500])
    right, right_energies = direct_update(some, here.numpy(patterns), BETA)
    found, found_energies = map(here.numpy, update(noisy[:500], patterns, BETA))
    if here.picture:
        shown = np.linspace(0, count - 1, 12).astype(int)
        rows = {"noisy": noisy, "retrieved": state, "original": originals}
        parts = {name: here.numpy(x)[shown] * length[shown] for name, x in rows.items()}
        draw(parts, mean, here.picture)
    return verdict(
        error_of_an_update=(np.abs(found - right).max(), 2e-5),
        error_of_the_energy=(np.abs(found_energies - right_energies).max(), 2e-6),
        largest_rise_of_an_energy=(np.diff(energies, axis=0).max(), 2e-6),
        share_not_retrieved=(1 - float(kept[-1]), 0.25),
    )


if __name__ == "__main__":
    raise SystemExit(main())
