"""The text of a kernel: the .cuh files flattened, and one wrapper that holds the constants."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import NamedTuple

from cupy_flash.backward.variant import BackwardVariant, StatisticsVariant, SumVariant
from cupy_flash.softmaxes.select import SoftmaxVariant
from cupy_flash.variant import Variant

AnyVariant = Variant | SoftmaxVariant | BackwardVariant | StatisticsVariant | SumVariant

ELEMENT_TYPES = {
    "float16": "Float16",
    "bfloat16": "BFloat16",
    "float32": "float",
    "float64": "double",
}
INTEGER_TYPES = {
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned",
    "uint64": "unsigned long long",
}

_INCLUDE = re.compile(r'^\s*#include\s+"([^"]+)"\s*$')
_PRAGMA_ONCE = re.compile(r"^\s*#pragma\s+once\s*$")


@functools.cache
def root() -> Path:
    """Folder of the kernel sources: inside the installed package, else beside it in a checkout."""
    package = Path(__file__).resolve().parent
    inside = package / "kernels_cu"
    return inside if inside.is_dir() else package.parent / "kernels_cu"


def flatten(name: str, folder: Path | None = None) -> str:
    """Return a source file with its includes put in place, each once.

    NVRTC gets one text, so that CuPy's cache key sees every byte of it (files found through -I
    are not part of that key). `#line` keeps the compiler's messages pointing at the real files.
    """
    folder = root() if folder is None else folder
    seen: set[str] = set()

    def expand(relative: str) -> list[str]:
        if relative in seen:
            return []
        seen.add(relative)
        path = folder / relative
        lines = [f'#line 1 "{relative}"']
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            include = _INCLUDE.match(line)
            if include:
                lines += expand(include[1])
                lines.append(f'#line {number + 1} "{relative}"')
            elif _PRAGMA_ONCE.match(line):
                lines.append("")
            else:
                lines.append(line)
        return lines

    return "\n".join(expand(name)) + "\n"


def wrapper(variant: AnyVariant) -> str:
    """Return the constants of a variant and its extern "C" kernel."""
    constants, function, params = _text_of(variant)
    tile = variant.tile
    lines = ['#line 1 "wrapper"', "struct Config {"]
    lines += [f"  using {name} = {text};" for name, text in constants.types.items()]
    lines += [
        f"  static constexpr bool {name} = {str(flag).lower()};"
        for name, flag in constants.flags.items()
    ]
    lines += [f"  static constexpr int {name} = {size};" for name, size in constants.sizes.items()]
    lines += [
        "};",
        f'extern "C" __global__ void __launch_bounds__({tile.threads}, {tile.blocks})',
        f"{variant.entry}(const __grid_constant__ {params} params) {{",
        f"  {function}<Config>(params);",
        "}",
    ]
    return "\n".join(lines) + "\n"


class _Constants(NamedTuple):
    """What the text of a variant has in its struct Config."""

    types: dict[str, str]
    flags: dict[str, bool]
    sizes: dict[str, int]


def _text_of(variant: AnyVariant) -> tuple[_Constants, str, str]:
    """Return a kernel's constants, the function that it is, and the name of its struct."""
    if isinstance(variant, SoftmaxVariant):
        return _softmax(variant), variant.function, "SoftmaxParams"
    if isinstance(variant, Variant):
        return _forward(variant), f"forward_{variant.code}", "Params"
    if isinstance(variant, BackwardVariant):
        return _backward(variant), f"backward_{variant.code}", "BackwardParams"
    if isinstance(variant, StatisticsVariant):
        return _statistics(variant), "backward_statistics", "BackwardParams"
    return _sum(variant), "backward_sum", "SumParams"


def _backward(variant: BackwardVariant) -> _Constants:
    forward = _forward(variant.forward)
    types = forward.types | {"DBias": ELEMENT_TYPES[variant.pairs or variant.accumulate]}
    flags = {
        "kOfKeys": variant.keys,
        "kFirst": variant.first,
        "kSecond": variant.second,
        "kPairs": variant.pairs is not None,
        "kBiasSums": variant.bias_sums,
        "kSlopeSums": variant.slope_sums,
        "kScaleSums": variant.scale_sums,
    }
    sizes = forward.sizes | {"kSharedMemory": variant.shared_memory}
    if variant.family == "sm80":
        sizes |= {"kStep": variant.tile.chunk_n, "kStages": variant.tile.stages}
        sizes |= {"kSplit": variant.tile.split}
        flags["kGroups"] = variant.tile.groups
    return _Constants(types, forward.flags | flags, sizes)


def _statistics(variant: StatisticsVariant) -> _Constants:
    types = {
        "OType": ELEMENT_TYPES[variant.dtype],
        "Accumulate": ELEMENT_TYPES[variant.accumulate],
        "QLengths": "NoLengths",
        "KLengths": "NoLengths",
        "Sinks": _type_or(variant.sinks, "NoSinks"),
    }
    flags = dict.fromkeys(("kLeft", "kRight", "kOffsetFromLengths"), False)
    flags["kAligned"] = variant.aligned
    sizes = {"kBlockM": variant.tile.block_m, "kRows": variant.rows}
    sizes |= {"kLanes": variant.lanes, "kPack": variant.pack}
    return _Constants(types, flags, sizes)


def _sum(variant: SumVariant) -> _Constants:
    threads = variant.tile.threads
    types = {
        "Source": ELEMENT_TYPES[variant.source],
        "Target": ELEMENT_TYPES[variant.target],
        "Accumulate": ELEMENT_TYPES["float64" if variant.target == "float64" else "float32"],
    }
    return _Constants(types, {}, {"kThreads": threads, "kTeam": threads if variant.team else 1})


def _forward(variant: Variant) -> _Constants:
    tile = variant.tile
    types = {
        "QType": ELEMENT_TYPES[variant.q],
        "KType": ELEMENT_TYPES[variant.k],
        "VType": ELEMENT_TYPES[variant.v],
        "OType": ELEMENT_TYPES[variant.o],
        "Accumulate": ELEMENT_TYPES[variant.accumulate],
        "QLengths": _type_or(variant.q_lengths, "NoLengths"),
        "KLengths": _type_or(variant.k_lengths, "NoLengths"),
        "Bias": _type_or(variant.bias, "NoBias"),
        "Slopes": _type_or(variant.alibi, "NoSlopes"),
        "Sinks": _type_or(variant.sinks, "NoSinks"),
    }
    flags = {
        "kLeft": variant.left,
        "kRight": variant.right,
        "kOffsetFromLengths": variant.offset_from_lengths,
        "kMask": variant.mask is not None,
        "kMaskRows": variant.mask == "pairs",
        "kBiasRows": variant.bias_along == "pairs",
        "kSoftcap": variant.softcap,
    }
    sizes = {"kBlockM": tile.block_m, "kBlockN": tile.block_n}
    if variant.family == "sm80":
        sizes |= {"kWarps": tile.threads_m, "kUnit": variant.unit}
    elif variant.family == "sm90":
        sizes |= {"kStages": tile.stages, "kUnit": variant.unit}
    elif variant.family == "simt":
        sizes |= {"kThreadsM": tile.threads_m, "kThreadsN": tile.threads_n}
        sizes |= {"kChunkD": tile.chunk_d, "kChunkN": tile.chunk_n}
        flags |= {"kMatrix": tile.matrix, "kGroups": tile.groups, "kTf32": variant.tf32}
    sizes |= {
        "kHeadDim": variant.head_dim,
        "kHeadDimV": variant.head_dim_v,
        "kSharedMemory": variant.shared_memory,
    }
    return _Constants(types, flags, sizes)


def _type_or(dtype: str | None, absent: str) -> str:
    return absent if dtype is None else (ELEMENT_TYPES | INTEGER_TYPES)[dtype]


def _softmax(variant: SoftmaxVariant) -> _Constants:
    types = {
        "Element": ELEMENT_TYPES[variant.dtype],
        "Accumulate": ELEMENT_TYPES[variant.accumulate],
    }
    sizes = {
        "kThreads": variant.tile.threads,
        "kLanes": variant.tile.lanes,
        "kPacks": variant.tile.packs,
        "kUpdate": variant.update,
        "kExchange": variant.exchange,
    }
    return _Constants(types, {"kAligned": variant.aligned}, sizes)


def target(variant: AnyVariant) -> str:
    """Return the architecture that a variant is compiled for, as in sm_90a."""
    groups = isinstance(variant, Variant | BackwardVariant) and variant.tile.groups
    return f"{variant.arch}{'a' if groups else ''}"


def source(variant: AnyVariant, folder: Path | None = None) -> str:
    """Return the whole text that NVRTC compiles for a variant."""
    return flatten(variant.file, folder) + wrapper(variant)
