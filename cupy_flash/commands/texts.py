"""Texts of command lines that stand for shapes and windows."""

from __future__ import annotations

import argparse


def shape(text: str) -> tuple[int, ...]:
    """Read a shape such as ``2,8,1024,64``."""
    try:
        extents = tuple(int(extent) for extent in text.split(","))
    except ValueError:
        extents = (-1,)
    if min(extents) < 0:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no shape; say extents >= 0 with commas, such as 2,8,1024,64"
        )
    return extents


def window(text: str) -> tuple[int | None, ...]:
    """Read a window such as ``127,0`` or ``127,none``; whether it is one is for others to say."""
    try:
        return tuple(None if bound == "none" else int(bound) for bound in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no window; say two ints >= 0 or 'none', such as 127,0"
        ) from None
