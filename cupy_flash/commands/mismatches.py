"""Installed parts that don't fit together, each named, with the way out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

Version = tuple[int, int]

NVRTC_WHEELS = ("nvidia-cuda-nvrtc-cu11", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc")
# The first NVRTC that accepts CuPy's sm_90 together with our sm_90a.
SM90_NVRTC = (12, 9)


@dataclass(frozen=True)
class Facts:
    """What decides whether parts fit together; None where it isn't known.

    Attributes
    ----------
    distributions : mapping
        Version of every installed distribution.
    nvrtc, nvrtc_path, highest_arch
        The loaded NVRTC: version, file, newest architecture it compiles for.
    driver, runtime : (int, int)
        Highest CUDA version of the driver; version of CuPy's CUDA runtime.
    archs : tuple of int
        Architectures of the GPUs.
    ptx : bool
        Whether CuPy compiles to PTX (CUPY_COMPILE_WITH_PTX=1).
    """

    distributions: Mapping[str, str] = field(default_factory=dict)
    nvrtc: Version | None = None
    nvrtc_path: str = "unknown"
    highest_arch: int | None = None
    driver: Version | None = None
    runtime: Version | None = None
    archs: tuple[int, ...] = ()
    ptx: bool = False


def mismatches(facts: Facts) -> list[str]:
    """Return one line for every mismatch; an unknown fact never makes one."""
    return [*_packages(facts), *_wheels(facts), *_driver(facts), *_architectures(facts)]


def _packages(facts: Facts) -> Iterator[str]:
    cupys = sorted(name for name in facts.distributions if re.fullmatch(r"cupy(-cuda\w+)?", name))
    if len(cupys) > 1:
        listing = " and ".join(f"{name} {facts.distributions[name]}" for name in cupys)
        yield (
            f"{listing} are installed and overwrite each other's files: "
            f"pip uninstall {' '.join(cupys)}, then install one"
        )


def _wheels(facts: Facts) -> Iterator[str]:
    if facts.nvrtc is None:
        return
    for name in NVRTC_WHEELS:
        version = facts.distributions.get(name)
        if version is not None and _major_minor(version) != facts.nvrtc:
            yield (
                f"{name} {version} is installed, but CuPy loaded NVRTC {_dotted(facts.nvrtc)} "
                f"from {facts.nvrtc_path}"
            )


def _driver(facts: Facts) -> Iterator[str]:
    if facts.driver is None:
        return
    driver = _dotted(facts.driver)
    if facts.runtime is not None and facts.runtime[0] > facts.driver[0]:
        yield (
            f"CuPy is built for CUDA {facts.runtime[0]}, but the driver supports CUDA {driver}: "
            f"update the driver or install cupy-cuda{facts.driver[0]}x"
        )
    if facts.nvrtc is None or facts.nvrtc <= facts.driver:
        return
    newer = f"NVRTC {_dotted(facts.nvrtc)} is newer than the driver supports (CUDA {driver})"
    if facts.nvrtc[0] > facts.driver[0]:
        yield f"{newer}: kernels may not load; update the driver or install an older NVRTC wheel"
    elif facts.ptx:
        yield f"{newer}: the driver refuses its PTX; unset CUPY_COMPILE_WITH_PTX"
    else:
        yield f"{newer}: kernels load, but they would not with CUPY_COMPILE_WITH_PTX=1"


def _architectures(facts: Facts) -> Iterator[str]:
    if facts.nvrtc is None:
        return
    loaded = f"NVRTC {_dotted(facts.nvrtc)}"
    for arch in sorted(set(facts.archs)):
        if facts.highest_arch is not None and arch > facts.highest_arch:
            yield (
                f"the GPU is sm_{arch}, but {loaded} knows none newer than "
                f"sm_{facts.highest_arch}: install a newer NVRTC wheel, or kernels may not load"
            )
    if facts.nvrtc < SM90_NVRTC:
        yield (
            f"{loaded} is older than {_dotted(SM90_NVRTC)}: the sm90 family, for Hopper GPUs, "
            "can't be compiled; the others can"
        )


def _dotted(version: Version) -> str:
    return f"{version[0]}.{version[1]}"


def _major_minor(version: str) -> Version | None:
    found = re.match(r"(\d+)\.(\d+)", version)
    return None if found is None else (int(found[1]), int(found[2]))
