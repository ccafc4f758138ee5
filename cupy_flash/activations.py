"""Recorded activations of a real model, for examples, tests and measurements.

Random normal inputs are kind to attention: all scores are small. These come from the sentence
encoder all-MiniLM-L6-v2, whose first layer has scores beyond 60. ``data/NOTICE.md`` says what was
recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from itertools import pairwise

import numpy as np
import numpy.typing as npt

__all__ = ["Activation", "load"]


@dataclass(frozen=True, eq=False)
class Activation:
    """Inputs of one attention layer for one text.

    Attributes
    ----------
    name : str
        Layer and length of the text, such as ``"layer0/301"``.
    q, k, v : numpy.ndarray, shape (heads, tokens, dim), float16
        Queries, keys and values. Views of packed (tokens, heads, dim) memory, as a model leaves
        them, so a row of a head is contiguous and a head is not.
    """

    name: str
    q: npt.NDArray[np.float16]
    k: npt.NDArray[np.float16]
    v: npt.NDArray[np.float16]


def load() -> list[Activation]:
    """Read the activations that the package carries.

    Returns
    -------
    list of Activation
        Layer 0 for texts of 45 and 301 tokens, then layer 5 for texts of 13 and 45 tokens; 12 heads
        of dimension 32. The model's attention is not causal and its scale is the default,
        1/sqrt(32).

    Examples
    --------
    >>> from cupy_flash import activations
    >>> [(a.name, a.q.shape) for a in activations.load()][:2]
    [('layer0/45', (12, 45, 32)), ('layer0/301', (12, 301, 32))]
    """
    found = []
    with (
        (resources.files("cupy_flash") / "data" / "minilm_qkv.npz").open("rb") as file,
        np.load(file) as packed,
    ):
        for layer in ("layer0", "layer5"):
            q, k, v = (packed[f"{layer}_{name}"].swapaxes(0, 1) for name in "qkv")
            for start, end in pairwise(packed[f"{layer}_cu_seqlens"].tolist()):
                text = np.s_[:, start:end]
                found.append(Activation(f"{layer}/{end - start}", q[text], k[text], v[text]))
    return found
