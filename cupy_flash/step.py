"""One launch of a plan: the kernel's struct in host memory, and the call into the driver."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cupy_flash.driver import Driver

# Words of the struct and after them its own address, then the address of that last word, which is
# what the driver takes: where the addresses of a kernel's parameters are.
Block = tuple["array[int]", int]


@dataclass(frozen=True)
class Step:
    """One launch, on the device that is current when it is made.

    Attributes
    ----------
    function : cupy.RawKernel
        The compiled kernel.
    handle : int
        The driver's CUfunction of it.
    grid, threads : int
        Numbers of blocks, and of threads of each.
    shared_memory : int
        Bytes of dynamic shared memory of a block.
    words : array of int64
        The kernel's struct, without its addresses.
    addresses : tuple of (int, int, int)
        Which pointer goes to which word, and what is added to it, in bytes.
    """

    function: Any
    handle: int
    grid: int
    threads: int
    shared_memory: int
    words: array[int] = field(repr=False)
    addresses: tuple[tuple[int, int, int], ...]
    _idle: list[Block] = field(default_factory=list, init=False, repr=False, compare=False)

    def launch(self, cuda: Driver, stream: int, pointers: list[int]) -> None:
        """Launch the kernel for the arrays at `pointers` on the current stream, `stream`.

        RawKernel does the same and takes several times as long: it copies the struct twice and
        asks again for the device, the kernel and the stream.
        """
        # The driver copies the struct before it returns. Until then no other call may write there:
        # one of another thread, or of this one from a signal handler or a finaliser.
        try:
            block = self._idle.pop()
        except IndexError:
            block = self._new_block()
        words, arguments = block
        for source, place, shift in self.addresses:
            words[place] = pointers[source] + shift
        grid, threads, shared_memory = self.grid, self.threads, self.shared_memory
        try:
            cuda.launch(self.handle, grid, 1, 1, threads, 1, 1, shared_memory, stream, arguments, 0)
        except cuda.Refusal:
            # A thread that never used CUDA has no context, and RawKernel gives it one. Any other
            # refusal is the same there.
            # RawKernel copies bytes without fields in a tenth of the time that a struct takes.
            size = len(self.words) * self.words.itemsize
            (params,) = np.frombuffer(words, np.dtype((np.void, size)), count=1)
            self.function((grid,), (threads,), (params,), shared_mem=shared_memory)
        self._idle.append(block)

    def _new_block(self) -> Block:
        words = self.words[:]
        words.append(0)
        address = words.buffer_info()[0]
        words[-1] = address
        return words, address + len(self.words) * words.itemsize
