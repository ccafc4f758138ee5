"""PyTorch's attention with options: its efficient backend, and FlexAttention.

Both see the arrays of `option_cases` through DLPack, and compute what `attention` would with them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from option_cases import OptionCase
from peers import Arrays, Candidate, Case
from peers_torch import SIXTEEN_BITS, Sdpa, TorchCandidate


def tensor(x: Any) -> Any:
    """Return CuPy's array as a tensor, without a copy."""
    if x.dtype.kind == "b":
        # Not every version of DLPack has booleans.
        return torch.from_dlpack(x.view("uint8")).view(torch.bool)
    return torch.from_dlpack(x)


def lacks(case: OptionCase, names: tuple[str, ...]) -> str | None:
    """Say that a peer doesn't take one of some arguments, if the case has one."""
    found = [name for name in names if name in case.option.names]
    return f"takes no {', '.join(found)}" if found else None


class Efficient(Sdpa):
    """Masks and biases as attn_mask.

    A bias of q's dtype, expanded to (batch, heads, m, n) by strides of 0, is read as it is. A mask
    is given as it is too: PyTorch makes a bias of it in every call, of its own shape.
    """

    def __init__(self) -> None:
        super().__init__("torch efficient", SDPBackend.EFFICIENT_ATTENTION, SIXTEEN_BITS)

    def why_not(self, case: Case) -> str | None:
        return super().why_not(case) or lacks(case, ("window", "softcap", "alibi_slopes", "sinks"))

    def call(self, case: Case, arrays: Arrays) -> Callable[[], Any]:
        q, k, v = map(torch.from_dlpack, (arrays.q, arrays.k, arrays.v))
        given = {name: tensor(x) for name, x in arrays.options.items()}
        attn_mask = given.get("mask")
        if "bias" in given:
            attn_mask = given["bias"].expand(case.batch, case.heads, case.n, case.n)

        def run() -> Any:
            with sdpa_kernel(self.backend):
                return scaled_dot_product_attention(
                    q, k, v, attn_mask=attn_mask, is_causal=case.causal
                )

        return run


class Flex(TorchCandidate):
    """FlexAttention, compiled for each case."""

    distributions = ("triton",)

    def __init__(self) -> None:
        super().__init__("FlexAttention")
        # Beyond the limit, 8 by default, it would silently run without being compiled.
        torch._dynamo.config.recompile_limit = 1024

    def why_not(self, case: Case) -> str | None:
        return lacks(case, ("sinks",))

    def call(self, case: Case, arrays: Arrays) -> Callable[[], Any]:
        q, k, v = map(torch.from_dlpack, (arrays.q, arrays.k, arrays.v))
        compiled = torch.compile(flex_attention, dynamic=False)
        options = {"score_mod": score_mod(arrays), "block_mask": block_mask(case, arrays)}
        return lambda: compiled(q, k, v, **options)


def score_mod(arrays: Arrays) -> Callable[..., Any] | None:
    """Return what changes a score: softcap, then bias, then ALiBi."""
    softcap = arrays.options.get("softcap")
    bias, slopes = (
        tensor(arrays.options[name]) if name in arrays.options else None
        for name in ("bias", "alibi_slopes")
    )
    if softcap is bias is slopes is None:
        return None
    axes = 0 if bias is None else bias.ndim

    def changed(score: Any, batch: Any, head: Any, row: Any, key: Any) -> Any:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        if axes == 1:
            score = score + bias[key]
        elif axes == 2:
            score = score + bias[row, key]
        elif axes == 3:
            score = score + bias[head, row, key]
        if slopes is not None:
            score = score - slopes[head] * torch.abs(row - key)
        return score

    return changed


def block_mask(case: Case, arrays: Arrays) -> Any:
    """Return which tiles are visible, wholly or in part; None if every pair is."""
    seen = mask_mod(case, arrays)
    if seen is None:
        return None
    mask = arrays.options.get("mask")
    batch = case.batch if mask is not None and mask.ndim == 4 else None
    return create_block_mask(seen, batch, None, case.n, case.n, device="cuda")


def mask_mod(case: Case, arrays: Arrays) -> Callable[..., Any] | None:
    """Return which pairs are visible."""
    if case.causal:
        return lambda batch, head, row, key: key <= row
    if "window" in arrays.options:
        left, right = arrays.options["window"]
        return lambda batch, head, row, key: (key >= row - left) & (key <= row + right)
    if "mask" in arrays.options:
        mask = tensor(arrays.options["mask"])
        if mask.ndim == 2:
            return lambda batch, head, row, key: mask[row, key]
        # FlexAttention's own indexing takes tensors only.
        of_entry = mask[:, 0, 0, :]
        return lambda batch, head, row, key: of_entry[batch, key]
    return None


def efficient() -> Candidate:
    return Efficient()


def flex() -> Candidate:
    return Flex()
