"""The options that `time_options.py` measures: what each one is, and its arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import cupy
import numpy as np

from cupy_flash.commands import bench_measure
from cupy_flash.commands.bench_measure import normal
from peers import Arrays, Case

TOKENS = 16_384
WIDTH = 2_048
# Larger tables of one bias a head are left out.
MOST_BYTES = 2**32
# Side of the tiles that a mask of blocks hides whole.
BLOCK = 128
# Words of OPTIONS: the plain calls, and the window whose time is measured along n.
FULL, CAUSAL, WINDOW = "full", "causal", "window-left"


def _bias(case: Case) -> Any:
    return normal((case.n, case.n), case.dtype, 4)


def _bias_in_float32(case: Case) -> Any:
    return normal((case.n, case.n), "float32", 4)


def _bias_of_heads(case: Case) -> Any:
    return normal((case.heads, case.n, case.n), case.dtype, 5)


def _bias_of_keys(case: Case) -> Any:
    return normal((case.n,), case.dtype, 6)


def _random_mask(case: Case) -> Any:
    """Draw half of the pairs; each row sees at least the key that it stands at."""
    drawn = np.random.default_rng(7).random(min(case.n**2, bench_measure.DRAWN)) < 0.5
    mask = np.resize(drawn, (case.n, case.n))
    np.fill_diagonal(mask, True)
    return mask


def _key_padding(case: Case) -> Any:
    """Hide the last keys of each batch entry: between none and half of them, a quarter in all."""
    entries = np.arange(1, case.batch + 1)
    lengths = case.n - case.n * entries // (2 * (case.batch + 1))
    return (np.arange(case.n) < lengths[:, None])[:, None, None, :]


def _mask_of_blocks(case: Case) -> Any:
    """Hide half of the tiles in each row of tiles."""
    tiles = -(-case.n // BLOCK)
    order = np.random.default_rng(8).permuted(np.tile(np.arange(tiles), (tiles, 1)), axis=1)
    seen = order < (tiles + 1) // 2
    return np.repeat(np.repeat(seen, BLOCK, 0), BLOCK, 1)[: case.n, : case.n].copy()


def _slopes(case: Case) -> Any:
    """Return those of ALiBi's paper for a power of two of heads: 2^(-8 h / H), h from 1."""
    return np.exp2(-8 * np.arange(1, case.heads + 1) / case.heads).astype(np.float32)


def _sinks(case: Case) -> Any:
    return normal((case.heads,), "float32", 9)


@dataclass(frozen=True)
class Option:
    """An option of `attention`, or several, as one line of the results.

    Attributes
    ----------
    text : str
        What a table calls it.
    causal : bool
        Whether the call is causal; it is compared with the plain call that is the same in this.
    values : mapping
        Arguments of `attention` that are no arrays.
    tables : mapping of str to callable
        Those that are arrays, and what draws each for a case.
    """

    text: str
    causal: bool = False
    values: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, Callable[[Case], Any]] = field(default_factory=dict)

    @property
    def beside(self) -> str:
        """The plain call, a word of `OPTIONS`."""
        return CAUSAL if self.causal else FULL

    @property
    def names(self) -> frozenset[str]:
        """Which arguments of `attention` it gives."""
        return frozenset((*self.values, *self.tables))

    @property
    def window(self) -> tuple[int, int] | None:
        return self.values.get("window")

    def pairs(self, n: int) -> int:
        """Count the pairs of rows and keys in the band of a causal or windowed call."""
        if self.window is None:
            return n * (n + 1) // 2 if self.causal else n * n
        left, right = (min(bound, n - 1) for bound in self.window)
        # Each bound cuts a triangle off the square.
        return n * n - sum(k * (k + 1) // 2 for k in (n - 1 - left, n - 1 - right))

    def too_large(self, case: Case) -> bool:
        return self.tables.get("bias") is _bias_of_heads and (
            case.heads * case.n**2 * 2 > MOST_BYTES
        )


OPTIONS = {
    FULL: Option("none"),
    CAUSAL: Option("none, causal", causal=True),
    "bias": Option("bias (m, n)", tables={"bias": _bias}),
    "bias-float32": Option("bias (m, n) in float32", tables={"bias": _bias_in_float32}),
    "bias-heads": Option("bias (heads, m, n)", tables={"bias": _bias_of_heads}),
    "bias-keys": Option("bias (n,)", tables={"bias": _bias_of_keys}),
    "mask": Option("random mask (m, n)", tables={"mask": _random_mask}),
    "mask-keys": Option("key padding (batch, 1, 1, n)", tables={"mask": _key_padding}),
    "mask-blocks": Option("mask of 128 x 128 tiles (m, n)", tables={"mask": _mask_of_blocks}),
    WINDOW: Option("window (1024, 0)", values={"window": (1024, 0)}),
    "window-both": Option("window (512, 512)", values={"window": (512, 512)}),
    "softcap": Option("softcap", values={"softcap": 50.0}),
    "softcap-causal": Option("softcap, causal", causal=True, values={"softcap": 50.0}),
    "alibi": Option("ALiBi, causal", causal=True, tables={"alibi_slopes": _slopes}),
    "sinks": Option("sinks, causal", causal=True, tables={"sinks": _sinks}),
    "all": Option(
        "mask, bias, softcap and sinks",
        values={"softcap": 50.0},
        tables={"mask": _random_mask, "bias": _bias, "sinks": _sinks},
    ),
}


@dataclass(frozen=True)
class OptionCase(Case):
    """A case with options; its FLOPs are those of the pairs in its band, exactly counted."""

    option: Option = OPTIONS[FULL]

    @property
    def flops(self) -> float:
        return 4.0 * self.batch * self.heads * self.option.pairs(self.n) * self.d


def case_of(option: Option, dtype: str, n: int, d: int) -> OptionCase:
    """Return a point of the papers with an option."""
    heads = WIDTH // d
    return OptionCase(dtype, TOKENS // n, heads, heads, n, d, option.causal, "bhnd", option=option)


class Tables:
    """Arrays of options on the GPU, each drawn once for all options of a point."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        self._drawn: dict[Callable[[Case], Any], Any] = {}

    def of(self, case: OptionCase) -> Arrays:
        """Return the arrays of a case with what `attention` is given by keyword."""
        return replace(self.arrays, options=options_of(case, self._drawn))


def options_of(case: OptionCase, drawn: dict[Callable[[Case], Any], Any]) -> dict[str, Any]:
    """Return what `attention` is given by keyword; arrays come from `drawn` or go there."""
    options = dict(case.option.values)
    for name, draw in case.option.tables.items():
        if draw not in drawn:
            drawn[draw] = cupy.asarray(draw(case))
        options[name] = drawn[draw]
    return options


def visible(case: OptionCase, arrays: Arrays) -> float:
    """Return the share of all pairs that is visible."""
    mask = arrays.options.get("mask")
    share = case.option.pairs(case.n) / case.n**2
    return share if mask is None else share * float(mask.mean())
