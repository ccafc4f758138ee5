"""Free energies: log-sum-exp over all states, for many fields at once, and what it is the slope of.

L Ising spins on a ring, s_i = 1 or -1, with a coupling J between neighbours and a field h_i at each
spin, have 2^L states of energy E(s) = -sum h_i s_i - J sum s_i s_(i+1). The free energy at the
temperature T (in units of J, k_B = 1) is F = -T log sum exp(-E / T). With h and J as the row of q,
and s and its sum of s_i s_(i+1) as the row of k, -E is a product of query and key, the scale is
1/T, and lse is -F / T. No values are needed: v has no columns. Of the gradients of lse, that of
the scale is minus the mean energy U, and that of q is 1/T times the mean spins. Entropy is
(U - F) / T.

Fields come in all strengths, from 1e-6 to 1. At T = 1e-6 a score is 1e7 and what decides about the
spins is a few units in it: float32 has lost them, float64 hasn't.

The free energies are checked by the transfer matrix, a product of L matrices of 2 x 2, and means by
direct sums.

    python examples/free_energy.py
    python examples/free_energy.py --cpu
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import cupy_flash as cf
from setting import Setting, setting, verdict

Array = np.ndarray[Any, Any]
COUPLING = 1.0
TEMPERATURES = (2.0, 0.1, 1e-6)
CHECKED = 16  # rows whose means are summed directly


def states(spins: int) -> Array:
    """Return every state's spins, and behind them the sum over neighbours."""
    s = 1.0 - 2.0 * (np.arange(2**spins)[:, None] >> np.arange(spins) & 1)
    return np.column_stack([s, (s * np.roll(s, 1, axis=1)).sum(axis=1)])


def by_attention(
    s: Setting, fields: Array, keys: Array, temperature: float, dtype: str
) -> tuple[Array, Array, float]:
    """Return the free energies, the means of every state's columns, and the sum of energies."""
    q, k = s.array(fields.astype(dtype)), s.array(keys.astype(dtype))
    v = s.xp.empty((len(keys), 0), dtype)
    scale = 1 / temperature
    out, lse = cf.attention(q, k, v, scale=scale, return_lse=True)
    slopes = cf.attention_backward(
        out, q, k, v, out, lse, dlse=s.xp.ones_like(lse), scale=scale, wrt=("q", "scale")
    )
    means = temperature * s.numpy(slopes.q).astype(float)
    return -temperature * s.numpy(lse).astype(float), means, -float(slopes.scale)


def by_transfer_matrix(fields: Array, temperature: float) -> Array:
    """Return the free energies of the ring: -T log of the trace of a product of matrices."""
    spin = np.array([1.0, -1.0])
    log_product = np.where(np.eye(2) == 1, 0.0, -np.inf)
    for h in fields[:, :-1].T:
        log_matrix = (COUPLING * np.outer(spin, spin) + h[:, None, None] * spin) / temperature
        log_product = np.logaddexp.reduce(
            log_product[..., :, :, None] + log_matrix[:, None], axis=-2
        )
    return -temperature * np.logaddexp(log_product[:, 0, 0], log_product[:, 1, 1])


def by_sums(fields: Array, keys: Array, temperature: float) -> Array:
    """Return the means by their definition."""
    energies = -(fields @ keys.T)
    weights = np.exp(-(energies - energies.min(axis=1, keepdims=True)) / temperature)
    return weights @ keys / weights.sum(axis=1, keepdims=True)


def main(argv: Sequence[str] | None = None) -> int:
    s = setting(__doc__, argv)
    spins, rows = (10, 48) if s.small else (20, 8192)
    rng = np.random.default_rng(0)
    strengths = np.logspace(-6, 0, rows)[:, None]
    fields = np.column_stack(
        [strengths * rng.standard_normal((rows, spins)), np.full(rows, COUPLING)]
    )
    keys = states(spins)
    checked = np.linspace(0, rows - 1, CHECKED).astype(int)
    print(f"{rows} fields, {len(keys)} states of {spins} spins")

    checks = {}
    for temperature in TEMPERATURES:
        exact = by_transfer_matrix(fields, temperature)
        sums = by_sums(fields[checked], keys, temperature)
        for dtype in ("float32", "float64"):
            free, means, energy = by_attention(s, fields, keys, temperature, dtype)
            energies = -(means * fields).sum(axis=1)
            entropy = (energies - free) / temperature
            expected = (-(sums * fields[checked]).sum(axis=1) - exact[checked]) / temperature
            off = np.abs(entropy[checked] - expected).max()
            error = np.abs(means[checked] - sums).max()
            print(
                f"  T = {temperature:g}, {dtype}: mean energy {energy / rows:.6f} J, "
                f"entropy off by {off:.1e}, a mean spin by {error:.1e}"
            )
        # Scores are rounded in their own units at each of their products, sums at each state.
        score = (np.abs(fields).sum(axis=1).max() + spins * COUPLING) / temperature
        unit = np.finfo(float).eps * ((spins + 4) * score + len(keys))
        at = f"at_T_{temperature:g}"
        checks[f"error_of_F_over_T_{at}"] = (np.abs(free - exact).max() / temperature, unit)
        # A weight is off by the factor exp(unit), and so is the sum that it is divided by.
        checks[f"error_of_means_{at}"] = (error, 2 * unit * spins)
        checks[f"energies_apart_{at}"] = (
            abs(energy - energies.sum()) / rows,
            2 * unit * spins * COUPLING,
        )
    return verdict(**checks)


if __name__ == "__main__":
    raise SystemExit(main())
