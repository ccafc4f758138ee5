"""Complex fields as real ones: the posterior mean of a wave that an array of sensors measures.

d sensors in a line measure complex amplitudes: a plane wave from an unknown direction, in complex
noise of variance sigma^2 at each. With a bank of n waves k_j that may have come, each as likely as
the others, Bayes' rule gives the posterior weight of k_j for the measurement q,
exp(-|q - k_j|^2 / sigma^2) over their sum. The exponent is 2 Re<q, k_j> / sigma^2, less
|k_j|^2 / sigma^2, less a term of the row that the softmax cancels. So it is attention with the
scale 2 / sigma^2 and a bias of keys, and the estimate of least mean square error is its result with
the waves as v.

A complex number is two reals beside each other, and Re<q, k> is the product of those: so complex q,
k and v of d columns are views of real ones with 2 d columns, nothing is copied, and the result is
viewed as complex again. So are gradients: that of q, seen as complex, is dL/dRe(q) + i dL/dIm(q).

    python examples/complex_fields.py
    python examples/complex_fields.py --cpu
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import cupy_flash as cf
from setting import setting, verdict

Array = np.ndarray[Any, Any]
NOISE = 1.5  # sigma
CHECKED = 64  # rows that are computed a second time


def waves(angles: Array, sensors: int) -> Array:
    """Return the amplitudes of plane waves at sensors half a wavelength apart."""
    return np.exp(1j * np.pi * np.sin(angles)[:, None] * np.arange(sensors))


def as_real(x: Any) -> Any:
    """View complex columns as twice as many real ones."""
    return x.view(x.real.dtype)


def as_complex(x: Any) -> Any:
    return x.view(np.result_type(x.dtype, np.complex64))


def direct(q: Array, k: Array, do: Array) -> tuple[Array, Array]:
    """Return the posterior means, and the gradient of Re<do, means>, by complex formulas."""
    distances = (np.abs(q[:, None] - k) ** 2).sum(axis=-1) / NOISE**2
    weights = np.exp(distances.min(axis=1, keepdims=True) - distances)
    weights /= weights.sum(axis=1, keepdims=True)
    means = weights @ k
    of_weights = (do @ k.conj().T).real
    of_scores = weights * (of_weights - (do * means.conj()).real.sum(axis=1, keepdims=True))
    return means, 2 / NOISE**2 * of_scores @ k


def main(argv: Sequence[str] | None = None) -> int:
    s = setting(__doc__, argv)
    sensors, rows, bank = (16, 200, 720) if s.small else (32, 32768, 131072)
    rng = np.random.default_rng(0)
    k = waves(np.linspace(-np.pi / 2, np.pi / 2, bank), sensors)
    sent = waves(rng.uniform(-1.2, 1.2, rows), sensors)
    noise, do = rng.standard_normal((2, rows, sensors, 2)) @ [1, 1j] / np.sqrt(2)
    q = sent + NOISE * noise

    fields = s.array(k)
    energy = (s.xp.abs(fields) ** 2).sum(axis=1)
    real = as_real(fields)
    out, pullback = cf.attention_vjp(
        as_real(s.array(q)), real, real, scale=2 / NOISE**2, bias=-energy / NOISE**2
    )
    slope = s.numpy(as_complex(pullback(as_real(s.array(do)), wrt=("q",)).q))
    means = s.numpy(as_complex(out))

    def error(x: Array) -> float:
        return float(np.sqrt((np.abs(x - sent) ** 2).mean()))

    best = k[(q[:CHECKED] @ k.conj().T).real.argmax(axis=1)]
    of_best = float(np.sqrt((np.abs(best - sent[:CHECKED]) ** 2).mean()))
    print(f"{rows} measurements by {sensors} sensors, {bank} possible waves")
    print(f"  error of the measurements, root mean square: {error(q):.3f}")
    print(f"  of the likeliest wave, {CHECKED} rows: {of_best:.3f}")
    print(f"  of the posterior mean: {error(means):.3f}")

    some = np.linspace(0, rows - 1, CHECKED).astype(int)
    expected, expected_slope = map(
        np.concatenate,
        zip(*(direct(q[[i]], k, do[[i]]) for i in some), strict=True),
    )
    # Scores are rounded in units of their parts, and sums of n terms by at most n units.
    parts = 2 * (np.abs(q).sum(axis=1).max() + sensors) / NOISE**2
    unit = 4 * np.finfo(float).eps * (parts + bank)
    largest = 2 * np.abs(do).sum(axis=1).max() * 2 / NOISE**2
    return verdict(
        error_of_the_means=(np.abs(means[some] - expected).max(), unit),
        error_of_the_slope=(np.abs(slope[some] - expected_slope).max(), 2 * unit * largest),
    )


if __name__ == "__main__":
    raise SystemExit(main())
