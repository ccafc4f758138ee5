"""The arithmetic of attention: FLOPs, bytes to device memory, and which of the two sets the time.

Pure functions of sizes: no array and no GPU is touched. The costs are in `roofline_costs`, the
GPUs in `gpus`; all of it can be imported from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from numpy.typing import DTypeLike

from cupy_flash.gpus import GPUS, Ceiling, Figure, Gpu, Unit, find_gpu
from cupy_flash.roofline_costs import (
    Cost,
    flash_attention,
    matrix_product,
    softmax_online,
    softmax_three_pass,
    standard_attention,
    visible_pairs,
)
from cupy_flash.roofline_sizes import dtype_name

__all__ = [
    "GPUS",
    "Bound",
    "Ceiling",
    "Cost",
    "Figure",
    "Gpu",
    "bound",
    "find_gpu",
    "flash_attention",
    "matrix_product",
    "rates",
    "ridge_point",
    "softmax_online",
    "softmax_three_pass",
    "standard_attention",
    "visible_pairs",
]

Figures = Literal["measured", "datasheet"]


@dataclass(frozen=True)
class Bound:
    """Which limit holds, and the time at that limit.

    Attributes
    ----------
    limit : {"memory", "compute"}
        The larger of the two times; "memory" if they are equal.
    seconds_memory, seconds_compute, seconds : float
        Time of the traffic, time of the arithmetic, and the larger one.
    memory, compute : Figure
        The rates that the two times were computed with, and their sources.
    """

    limit: Literal["memory", "compute"]
    seconds_memory: float
    seconds_compute: float
    seconds: float
    memory: Figure
    compute: Figure


def bound(
    cost: Cost,
    gpu: str | Gpu,
    dtype: DTypeLike,
    unit: Unit = "tensor",
    *,
    figures: Figures = "measured",
) -> Bound:
    """Which limit holds on a GPU, and the predicted time: that of the tighter limit, fully used.

    With ``unit="fma"`` all FLOPs share the FMA units. With ``unit="tensor"`` the products run on
    the tensor cores while softmax and rescaling run on the FMA units (float32 for 16-bit types),
    side by side at best: the slower of the two counts.

    Parameters
    ----------
    cost : Cost
    gpu : str or Gpu
        A name of `GPUS`, or your own.
    dtype : dtype or str
        Element type. float32 on "tensor" is TF32, whose products round inputs to 11 bits.
    unit : {"tensor", "fma"}
    figures : {"measured", "datasheet"}
        "measured" takes the measured ceiling where there is one and else the datasheet's peak.

    Returns
    -------
    Bound

    Raises
    ------
    TypeError, ValueError
        For an unknown GPU (the message lists the known ones), dtype, unit or path.
    """
    if not isinstance(cost, Cost):
        raise TypeError(f"cost is a {type(cost).__name__}; it must be a Cost")
    memory, compute = rates(gpu, dtype, unit, figures=figures)
    seconds_memory = cost.bytes / memory.rate
    if unit == "fma":
        seconds_compute = cost.flops / compute.rate
    else:
        fma = rates(gpu, dtype, "fma", figures=figures)[1]
        seconds_compute = cost.products / compute.rate
        seconds_rest = (cost.softmax + cost.rescaling) / fma.rate
        if seconds_rest > seconds_compute:
            seconds_compute, compute = seconds_rest, fma
    limit: Literal["memory", "compute"] = (
        "compute" if seconds_compute > seconds_memory else "memory"
    )
    seconds = max(seconds_memory, seconds_compute)
    return Bound(limit, seconds_memory, seconds_compute, seconds, memory, compute)


def ridge_point(
    gpu: str | Gpu, dtype: DTypeLike, unit: Unit = "tensor", *, figures: Figures = "measured"
) -> float:
    """Intensity in FLOP/byte above which arithmetic on `unit`, not memory, is the limit.

    Parameters and errors as in `bound`.
    """
    memory, compute = rates(gpu, dtype, unit, figures=figures)
    return compute.rate / memory.rate


def rates(
    gpu: str | Gpu, dtype: DTypeLike, unit: Unit = "tensor", *, figures: Figures = "measured"
) -> tuple[Figure, Figure]:
    """Look up the rates of device memory (bytes/s) and of a unit (FLOP/s), with their sources.

    Parameters and errors as in `bound`.
    """
    if figures not in ("measured", "datasheet"):
        raise ValueError(f"figures is {figures!r}; it must be 'measured' or 'datasheet'")
    found = gpu if isinstance(gpu, Gpu) else find_gpu(gpu)
    path = found.path(dtype_name(dtype), unit)
    if figures == "datasheet":
        return found.memory.datasheet, path.datasheet
    return found.memory.best_known, path.best_known
