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
    wanted = (("out", out, out_shape, dtype), ("lse", lse, out_shape[:-1], lse_dtype))
    for name, info, shape, element in wanted:
        if info is None:
            continue
        label = "out" if name == "out" else "the lse array in out"
        if info.shape != shape:
            raise ValueError(f"attention: {label} has shape {info.shape}; it must be {shape}")
        if info.dtype != element:
            raise TypeError(
                f"attention: {label} has dtype {info.dtype.name}; the result is {element.name}, "
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
    if out is not None and lse is not None and share_an_element(out, lse):
        raise ValueError("attention: out and the lse array in out share memory")
