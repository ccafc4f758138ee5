"""Run CUDA kernel text on the CPU.

The text is compiled as it is: ``emulator/cuda.hpp``, included before it, supplies the CUDA names.
One fiber stands for one CUDA thread, blocks run one after another in any order, and whatever the
emulator notices (an address outside the registered regions, a divergent barrier, ...) ends the
launch with an :class:`EmulationError`.

What it can't show: speed, bank conflicts, memory ordering, concurrency between blocks.
"""

from __future__ import annotations

import ctypes
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from emulation_build import BuildError, build, compiler
from isolation import run_isolated

__all__ = [
    "BLOCK_ORDERS",
    "LANDINGS",
    "SCHEDULES",
    "BuildError",
    "EmulatedKernel",
    "EmulationError",
    "Region",
    "build",
    "compiler",
    "run_isolated",
]

SCHEDULES = {
    "forward": 0,
    "backward": 1,
    "random": 2,
    "greedy": 3,
    "greedy backward": 4,
    "greedy random": 5,
    "first": 6,
    "last": 7,
}
"""Name and number of each order in which a block's threads may run."""

LANDINGS = {"late": 0, "early": 1}
"""Name and number of each moment at which the bytes of a cp.async reach shared memory."""

BLOCK_ORDERS = {"forward": 0, "backward": 1, "random": 2}
"""Name and number of each order in which the blocks of a grid may run."""

WARP = 32
MAX_THREADS = 1024
MAX_STEPS = 100_000_000
"""Default bound on a block's waits and checked accesses; far beyond what a test needs."""

# The emulator's state is per library, and ctypes lets other Python threads run during a call.
_launching = threading.Lock()


class EmulationError(RuntimeError):
    """The emulator noticed that a kernel did something wrong."""


@dataclass(frozen=True)
class Region:
    """Global memory that a launch may touch.

    Parameters
    ----------
    name : str
        How messages call it.
    address : int
        First byte.
    nbytes : int
        Size in bytes.
    writable : bool
        Whether the kernel may write it.
    """

    name: str
    address: int
    nbytes: int
    writable: bool

    @classmethod
    def of(cls, name: str, array: np.ndarray[Any, Any], writable: bool = False) -> Region:
        """Cover everything from the array's first to its last byte, gaps of strides included."""
        low, high = byte_bounds(array)
        return cls(name, low, high - low, writable)


class _Region(ctypes.Structure):
    """``emu::Region`` of memory.hpp."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_ulonglong),
        ("bytes", ctypes.c_ulonglong),
        ("writable", ctypes.c_int),
    )


class _Launch(ctypes.Structure):
    """``emu::Launch`` of launch.hpp."""

    _fields_ = (
        ("regions", ctypes.POINTER(_Region)),
        ("region_count", ctypes.c_uint),
        ("grid", ctypes.c_uint),
        ("threads", ctypes.c_uint),
        ("schedule", ctypes.c_int),
        ("smem", ctypes.c_ulonglong),
        ("seed", ctypes.c_ulonglong),
        ("max_steps", ctypes.c_ulonglong),
        ("flush_subnormals", ctypes.c_int),
        ("landing", ctypes.c_int),
        ("blocks", ctypes.POINTER(ctypes.c_uint)),
    )


class EmulatedKernel:
    """A built kernel.

    Parameters
    ----------
    path : Path
        What :func:`build` returned.
    entry : str
        Name of the kernel.
    params_size : int
        Size of its struct in bytes.
    """

    def __init__(self, path: Path, entry: str, params_size: int) -> None:
        self.entry = entry
        self.params_size = params_size
        self._run = getattr(ctypes.CDLL(str(path)), f"emulate_{entry}")
        self._run.argtypes = (ctypes.c_char_p, ctypes.POINTER(_Launch))
        self._run.restype = ctypes.c_char_p

    def launch(
        self,
        params: bytes | np.void,
        grid: int,
        threads: int,
        smem: int,
        regions: Sequence[Region],
        schedule: int = 0,
        seed: int = 0,
        max_steps: int = MAX_STEPS,
        flush_subnormals: bool = False,
        landing: int = 0,
        block_order: int = 0,
    ) -> None:
        """Run every block of the grid, one after another.

        Parameters
        ----------
        params : bytes or numpy.void
            The struct that the kernel takes.
        grid, threads : int
            Blocks, and threads per block: a multiple of 32, at most 1024.
        smem : int
            Bytes of dynamic shared memory; NaN before each block.
        regions : sequence of Region
            The global memory that the kernel may touch. The caller keeps it alive.
        schedule : int, default 0
            In which order a block's threads run; see ``SCHEDULES``. 0 to 2 take turns at every
            warp collective (in order, in reverse, at random); 3 to 5 run one warp up to the
            block's next barrier before the next warp moves, from the first one, the last one, or
            at random.
            Within a warp, lanes run one after another, last to first in 1 and 4.
        seed : int, default 0
            Of schedules 2 and 5, and of block order 2.
        max_steps : int
            Bound on the waits and checked accesses of one block, against endless loops.
        flush_subnormals : bool
            Compute as with NVRTC's -ftz=true (x86-64 only). It flushes double too, so it is for
            kernels whose arithmetic is float32.
        landing : int, default 0
            When cp.async writes; see ``LANDINGS``. 0, at the wait for its group, and the
            destination is NaN until then, shows copies that nobody waited for; 1, at once, shows
            copies over data that is still read.
        block_order : int, default 0
            In which order blocks run; see ``BLOCK_ORDERS``: from the first, from the last, or at
            random. A result that depends on it has blocks that write to one place.

        Raises
        ------
        EmulationError
            The kernel did something wrong; the message names the block, the thread and what.
        ValueError
            An argument is outside its range.
        """
        raw = params.tobytes() if isinstance(params, np.void) else params
        if len(raw) != self.params_size:
            raise ValueError(f"params has {len(raw)} bytes; {self.entry} takes {self.params_size}")
        if threads % WARP or not 0 < threads <= MAX_THREADS:
            raise ValueError(f"threads={threads}: allowed are multiples of 32 up to {MAX_THREADS}")
        if grid < 1:
            raise ValueError(f"grid={grid}: at least one block must run")
        if schedule not in SCHEDULES.values():
            raise ValueError(f"schedule={schedule}: allowed are {SCHEDULES}")
        if landing not in LANDINGS.values():
            raise ValueError(f"landing={landing}: allowed are {LANDINGS}")
        if block_order not in BLOCK_ORDERS.values():
            raise ValueError(f"block_order={block_order}: allowed are {BLOCK_ORDERS}")
        table = (_Region * max(1, len(regions)))(
            *(_Region(r.name.encode(), r.address, r.nbytes, r.writable) for r in regions)
        )
        config = _Launch(
            table,
            len(regions),
            grid,
            threads,
            schedule,
            smem,
            seed & (2**64 - 1),
            max_steps,
            flush_subnormals,
            landing,
            (ctypes.c_uint * grid)(*_blocks(grid, block_order, seed)),
        )
        with _launching:
            failure = self._run(raw, ctypes.byref(config))
        if failure is not None:
            raise EmulationError(f"{self.entry}: {failure.decode(errors='replace')}")


def _blocks(grid: int, order: int, seed: int) -> list[int]:
    """Return the blocks of a grid in the order in which they run."""
    blocks = list(range(grid))
    if order == BLOCK_ORDERS["backward"]:
        blocks.reverse()
    elif order == BLOCK_ORDERS["random"]:
        random.Random(seed).shuffle(blocks)
    return blocks
