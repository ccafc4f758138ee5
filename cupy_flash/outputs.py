"""The arrays that a caller wants results in: what they must be, and what they may not share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cupy_flash.arrays import ArrayInfo, overlaps_itself, share_an_element


def check_outputs(
    inputs: Mapping[str, ArrayInfo],
    out: ArrayInfo | None,
    lse: ArrayInfo | None,
    out_shape: tuple[int, ...],
    dtype: np.dtype[Any],
    lse_dtype: np.dtype[Any],
    return_lse: bool,
) -> None:
    """Refuse an out or an array for lse that can't take the results; None is always fine.

    Parameters
    ----------
    inputs : mapping
        Every array that the call reads, by the name of its argument.
    out, lse : ArrayInfo or None
        The arrays given.
    out_shape : tuple of int
        The result's shape; lse's is without the columns.
    dtype, lse_dtype : numpy.dtype
        The results' element types.
    return_lse : bool
        Whether the caller asks for lse.
    """
    if lse is not None and not return_lse:
        raise ValueError(
            "attention: out= holds an array for lse, but return_lse is False; say return_lse=True"
        )
    label = "the lse array in out"
    if out is not None:
        check_result("out", out, out_shape, dtype, inputs)
    if lse is not None:
        check_result(label, lse, out_shape[:-1], lse_dtype, inputs)
    if out is not None and lse is not None:
        check_apart("out", out, label, lse)


def check_result(
    label: str,
    info: ArrayInfo,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    inputs: Mapping[str, ArrayInfo],
) -> None:
    """Refuse an array that can't take a result, or that lies over one of the inputs."""
    if info.shape != shape:
        raise ValueError(f"attention: {label} has shape {info.shape}; it must be {shape}")
    if info.dtype != dtype:
        raise TypeError(
            f"attention: {label} has dtype {info.dtype.name}; the result is {dtype.name}, "
            "and nothing is cast silently"
        )
    if not info.writable:
        raise ValueError(f"attention: {label} is read-only; pass an array that can be written")
    if overlaps_itself(info):
        raise ValueError(
            f"attention: {label} has elements that share memory (strides {info.strides}, "
            f"shape {info.shape}); pass an array of its own"
        )
    for other, source in inputs.items():
        if share_an_element(info, source):
            raise ValueError(
                f"attention: {label} shares memory with {other}, which is still read while "
                "out is written; pass another array"
            )


def check_apart(label: str, info: ArrayInfo, other_label: str, other: ArrayInfo) -> None:
    """Refuse two arrays for results that have an element in common."""
    if share_an_element(info, other):
        raise ValueError(f"attention: {label} and {other_label} share memory")
