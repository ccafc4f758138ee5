"""What named GPUs can do: datasheet peaks and, where someone measured them, the real ceilings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Unit = Literal["tensor", "fma"]
UNITS: tuple[Unit, ...] = ("tensor", "fma")


@dataclass(frozen=True)
class Figure:
    """A rate and where it comes from.

    Attributes
    ----------
    rate : float
        FLOP/s (a fused multiply-add is two) or bytes/s.
    source : str
        Name of the datasheet, or what was measured, where and when.
    """

    rate: float
    source: str


@dataclass(frozen=True)
class Ceiling:
    """The datasheet's peak of one path and, if there is one, the measured ceiling."""

    datasheet: Figure
    measured: Figure | None = None

    @property
    def best_known(self) -> Figure:
        """The measured figure where there is one, else the datasheet's."""
        return self.measured or self.datasheet


@dataclass(frozen=True)
class Gpu:
    """A GPU as the roofline sees it.

    Attributes
    ----------
    name : str
        As in `GPUS`.
    memory : Ceiling
        Device memory, bytes/s, reads and writes together.
    compute : mapping of (str, str) to Ceiling
        FLOP/s by (element type, unit). ("float32", "tensor") is the TF32 path. The 16-bit types
        have no "fma" entry: scalar kernels accumulate them in float32, so that rate holds.
    """

    name: str
    memory: Ceiling
    compute: Mapping[tuple[str, str], Ceiling]

    def path(self, dtype: str, unit: Unit) -> Ceiling:
        """Find the compute ceiling of an element type on a unit.

        Parameters
        ----------
        dtype : {"float16", "bfloat16", "float32", "float64"}
        unit : {"tensor", "fma"}

        Returns
        -------
        Ceiling

        Raises
        ------
        ValueError
            If `unit` is unknown, or the GPU has no such path (float64 tensor cores on Ada).
        """
        if unit not in UNITS:
            raise ValueError(f"unit is {unit!r}; it must be one of {', '.join(map(repr, UNITS))}")
        if unit == "fma" and dtype in ("float16", "bfloat16"):
            dtype = "float32"
        if (dtype, unit) not in self.compute:
            known = ", ".join(" ".join(path) for path in self.compute)
            raise ValueError(
                f"unit is {unit!r}, but {self.name} has no {dtype} path there; it has {known}"
            )
        return self.compute[dtype, unit]


def find_gpu(name: str) -> Gpu:
    """Look a GPU up by name; case and spaces don't matter.

    Raises
    ------
    ValueError
        If the name is unknown; the message lists the known ones.
    """
    if not isinstance(name, str):
        raise TypeError(f"gpu is a {type(name).__name__}; it must be a name or a Gpu")
    for known, gpu in GPUS.items():
        if _key(known) == _key(name):
            return gpu
    raise ValueError(
        f"gpu is {name!r}, which is unknown; known: {', '.join(GPUS)}. "
        "For another one, build a cupy_flash.gpus.Gpu"
    )


def gpu_of_driver(name: str) -> Gpu | None:
    """Look a GPU up by the name that its driver gives it, such as "NVIDIA H200"; None if unknown.

    Only whole names count: an H100 with PCIe or NVL has other rates than the SXM.
    """
    known = _DRIVER_NAMES.get(name)
    return None if known is None else GPUS[known]


def _key(name: str) -> str:
    return name.lower().replace(" ", "").replace("-", "").replace("_", "")


def _tera(rate: float, source: str, measured: float | None = None, how: str = "") -> Ceiling:
    found = None if measured is None else Figure(measured * 1e12, f"measured: {how}")
    return Ceiling(Figure(rate * 1e12, source), found)


_H200 = "NVIDIA H200 datasheet, SXM"
_H200_DENSE = "NVIDIA H200 datasheet, SXM, half of the figure with sparsity"
_H100 = "NVIDIA H100 datasheet, SXM"
_H100_DENSE = "NVIDIA H100 datasheet, SXM, half of the figure with sparsity"
_A100 = "NVIDIA A100 datasheet, SXM 80 GB"
_L40S = "NVIDIA L40S datasheet"
_ADA = "NVIDIA Ada GPU architecture whitepaper, GeForce RTX 4090"
_ADA_64TH = "NVIDIA Ada GPU architecture whitepaper, 1/64 of the float32 rate"
_PRODUCT = "matmul 8192^3 on an H200, 2026-11-29"

_TABLE = (
    Gpu(
        "H200",
        _tera(4.8, _H200, 4.249, "device copy of 2 GiB on an H200, 2026-11-29"),
        MappingProxyType(
            {
                ("float16", "tensor"): _tera(989.5, _H200_DENSE, 764, _PRODUCT),
                ("bfloat16", "tensor"): _tera(989.5, _H200_DENSE, 776, _PRODUCT),
                ("float32", "tensor"): _tera(494.5, _H200_DENSE, 401.3, "TF32 " + _PRODUCT),
                ("float32", "fma"): _tera(67, _H200, 50.8, _PRODUCT),
                # Above the 34 TFLOP/s of the FMA units, so cuBLAS ran it on the tensor cores.
                ("float64", "tensor"): _tera(67, _H200, 63.6, _PRODUCT),
                ("float64", "fma"): _tera(34, _H200),
            }
        ),
    ),
    Gpu(
        "H100 SXM",
        _tera(3.35, _H100),
        MappingProxyType(
            {
                ("float16", "tensor"): _tera(989.5, _H100_DENSE),
                ("bfloat16", "tensor"): _tera(989.5, _H100_DENSE),
                ("float32", "tensor"): _tera(494.5, _H100_DENSE),
                ("float32", "fma"): _tera(67, _H100),
                ("float64", "tensor"): _tera(67, _H100),
                ("float64", "fma"): _tera(34, _H100),
            }
        ),
    ),
    Gpu(
        "A100 SXM 80GB",
        _tera(2.039, _A100),
        MappingProxyType(
            {
                ("float16", "tensor"): _tera(312, _A100),
                ("bfloat16", "tensor"): _tera(312, _A100),
                ("float32", "tensor"): _tera(156, _A100),
                ("float32", "fma"): _tera(19.5, _A100),
                ("float64", "tensor"): _tera(19.5, _A100),
                ("float64", "fma"): _tera(9.7, _A100),
            }
        ),
    ),
    Gpu(
        "L40S",
        _tera(0.864, _L40S),
        MappingProxyType(
            {
                ("float16", "tensor"): _tera(362, _L40S),
                ("bfloat16", "tensor"): _tera(362, _L40S),
                ("float32", "tensor"): _tera(183, _L40S),
                ("float32", "fma"): _tera(91.6, _L40S),
                ("float64", "fma"): _tera(91.6 / 64, _ADA_64TH),
            }
        ),
    ),
    Gpu(
        "RTX 4090",
        _tera(1.008, _ADA),
        MappingProxyType(
            {
                # float16 could accumulate in float16 at twice this rate; attention must not.
                ("float16", "tensor"): _tera(165.2, _ADA),
                ("bfloat16", "tensor"): _tera(165.2, _ADA),
                ("float32", "tensor"): _tera(82.6, _ADA),
                ("float32", "fma"): _tera(82.6, _ADA),
                ("float64", "fma"): _tera(82.6 / 64, _ADA_64TH),
            }
        ),
    ),
)

GPUS: Mapping[str, Gpu] = MappingProxyType({gpu.name: gpu for gpu in _TABLE})
_DRIVER_NAMES = {
    "NVIDIA H200": "H200",
    "NVIDIA H100 80GB HBM3": "H100 SXM",
    "NVIDIA A100-SXM4-80GB": "A100 SXM 80GB",
    "NVIDIA L40S": "L40S",
    "NVIDIA GeForce RTX 4090": "RTX 4090",
}
