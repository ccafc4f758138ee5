"""The options that `time_backward_options.py` measures, and the gradients asked for with each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from option_cases import CAUSAL, FULL, OPTIONS, TOKENS, WIDTH, WINDOW, Option, OptionCase
from peers import Case
from peers_backward import PARTS

QKV = ("q", "k", "v")
WITH_BIAS = (*QKV, "bias")
# What an option may cost over the plain call, and with the gradient of a bias.
BAR, BIAS_BAR = 1.25, 1.60


def _whole(case: Case) -> Any:
    """Return lengths that hide nothing: only what reading them costs is measured."""
    return np.full(case.batch, case.n, np.int32)


@dataclass(frozen=True)
class BackwardOption:
    """An option of the call, and what is asked of its backward pass.

    Attributes
    ----------
    text : str
        What a table calls it.
    option : Option
    wrt : tuple of str
        The gradients asked for.
    dlse : bool
        Whether lse has a gradient too.
    """

    text: str
    option: Option
    wrt: tuple[str, ...] = QKV
    dlse: bool = False

    @property
    def beside(self) -> str:
        """The plain call: a window's is causal, which sees as many pairs at the left end."""
        return CAUSAL if self.option.causal or self.option.window else FULL

    @property
    def bar(self) -> float:
        return BIAS_BAR if "bias" in self.wrt else BAR

    @property
    def passes(self) -> tuple[tuple[str, ...], ...]:
        """Gradients whose kernels can be compiled apart; a bias of keys is summed beside k's."""
        if "bias" not in self.wrt:
            return ((), ("q",), ("k", "v"))
        if self.option is OPTIONS["bias-keys"]:
            return ((), ("q",), ("k", "v", "bias"))
        return ((), ("q",), ("k", "v"), ("bias",))


def _same(word: str) -> BackwardOption:
    return BackwardOption(OPTIONS[word].text, OPTIONS[word])


def _with_gradient(word: str) -> BackwardOption:
    return BackwardOption(f"{OPTIONS[word].text} and its gradient", OPTIONS[word], WITH_BIAS)


LENGTHS = Option("lengths of whole sequences", tables={"q_lengths": _whole, "k_lengths": _whole})
BACKWARD_OPTIONS = {
    **{word: _same(word) for word in (FULL, CAUSAL, "bias", "bias-float32", "bias-heads")},
    **{word: _same(word) for word in ("bias-keys", "mask", "mask-keys", "softcap", "alibi")},
    **{word: _same(word) for word in (WINDOW, "window-both", "sinks")},
    "lengths": BackwardOption(LENGTHS.text, LENGTHS),
    "dlse": BackwardOption("a gradient of lse", OPTIONS[FULL], dlse=True),
    "dbias": _with_gradient("bias"),
    "dbias-float32": _with_gradient("bias-float32"),
    "dbias-heads": _with_gradient("bias-heads"),
    "dbias-keys": _with_gradient("bias-keys"),
}


@dataclass(frozen=True)
class BackwardOptionCase(OptionCase):
    """The backward call of a case with options."""

    @property
    def flops(self) -> float:
        return PARTS["backward"] * super().flops


def backward_case(
    option: Option, dtype: str, n: int, d: int, batch: int | None = None, heads: int | None = None
) -> BackwardOptionCase:
    """Return a point of the papers with an option, or one of fewer entries and heads."""
    batch, heads = batch or TOKENS // n, heads or WIDTH // d
    return BackwardOptionCase(
        dtype, batch, heads, heads, n, d, option.causal, "bhnd", option=option
    )
