"""A CuPy that only remembers what it was asked for, to compile and launch without a GPU."""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

from cupy_flash import attention, compile, device, launch, plan
from cupy_flash.arrays import to_dtype
from cupy_flash.params import PARAMS_DTYPE

SHAPE = (2, 4, 6, 8)
LOG = "kernel.cuh(3): error: expected a ;\n1 error detected"


class CompileException(Exception):
    pass


class FakeArray:
    """A cupy.ndarray over host memory."""

    def __init__(self, host, index=0):
        self.host, self.index = host, index
        self.shape, self.strides, self.dtype = host.shape, host.strides, host.dtype
        pointer = host.__array_interface__["data"][0]
        self.data = SimpleNamespace(ptr=pointer if host.size else 0, device_id=index)

    def transpose(self, axes):
        return FakeArray(self.host.transpose(axes), self.index)


class FakeCupy(types.ModuleType):
    """Counts compilations, records launches, knows two H200s; `broken` makes NVRTC refuse."""

    ndarray = FakeArray

    def __init__(self):
        super().__init__("cupy")
        self.current, self.capturing, self.broken = 0, False, False
        self.modules, self.calls = [], []
        self.while_compiling = lambda: None
        fake = self

        class Device:
            def __init__(self, index):
                self.index = index

            def __enter__(self):
                self.before, fake.current = fake.current, self.index

            def __exit__(self, *_):
                fake.current = self.before

        properties = {
            "major": 9,
            "minor": 0,
            "name": b"NVIDIA H200",
            "sharedMemPerBlockOptin": 232_448,
            "multiProcessorCount": 132,
        }
        self.cuda = types.ModuleType("cupy.cuda")
        self.cuda.Device = Device
        self.cuda.runtime = SimpleNamespace(
            getDeviceProperties=lambda index: properties, getDevice=lambda: self.current
        )
        self.cuda.get_current_stream = lambda: SimpleNamespace(is_capturing=lambda: self.capturing)
        self.cuda.compiler = SimpleNamespace(CompileException=CompileException)
        self.cuda.nvrtc = SimpleNamespace(getVersion=lambda: (12, 9))

    def empty(self, shape, dtype=float):
        return FakeArray(np.full(shape, 7, dtype), self.current)

    def RawModule(self, **given):
        self.modules.append(given)
        return SimpleNamespace(get_function=self.get_function)

    def get_function(self, name):
        self.while_compiling()
        if self.broken:
            raise CompileException(LOG)
        return FakeFunction(self, name)


class FakeFunction:
    num_regs = 128
    max_dynamic_shared_size_bytes = None

    def __init__(self, cupy, name):
        self.cupy, self.name, self.loaded_on = cupy, name, cupy.current

    def __call__(self, grid, block, arguments, *, shared_mem=0):
        assert self.cupy.current == self.loaded_on, "launched on another device"
        call = SimpleNamespace(grid=grid, block=block, shared_mem=shared_mem, function=self)
        (argument,) = arguments
        assert isinstance(argument, np.void), "CuPy passes it by value"
        (call.params,) = np.frombuffer(argument.tobytes(), PARAMS_DTYPE)
        self.cupy.calls.append(call)


def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCupy]:
    """Put a new fake in CuPy's place, and forget what another one left in our caches."""
    fake = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setitem(sys.modules, "cupy.cuda", fake.cuda)
    monkeypatch.setattr(compile, "_kernels", {})
    monkeypatch.setattr(compile, "_locks", {})
    monkeypatch.setattr(plan, "_plans", {})
    caches = device.actual, device.nvrtc_version
    for cache in caches:
        cache.cache_clear()
    yield fake
    for cache in caches:
        cache.cache_clear()


def planned(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """Return a list to which every call that is planned is added, and no warm one."""
    found = []
    make = launch.make_plan

    def recorded(*args):
        found.append(args)
        return make(*args)

    monkeypatch.setattr(launch, "make_plan", recorded)
    return found


def on_gpu(shape=SHAPE, dtype="float32", index=0, shift=0):
    """Make an array whose address is `shift` bytes above a multiple of 16."""
    dtype = to_dtype(dtype)
    buffer = np.zeros(math.prod(shape) * dtype.itemsize + 32, np.uint8)
    start = -buffer.__array_interface__["data"][0] % 16 + shift
    return FakeArray(np.ndarray(shape, dtype, buffer, start), index)


def qkv(**kinds):
    return [on_gpu(**kinds) for _ in range(3)]


def lengths(*values, dtype=np.int32):
    return FakeArray(np.array(values, dtype))


def swapped(x, *axes):
    return FakeArray(x.host.swapaxes(*(axes or (1, 2))), x.index)


def call(given):
    """Call attention on q, k and v of SHAPE, some of them replaced, with options."""
    q, k, v = qkv()
    arrays = {"q": q, "k": k, "v": v} | given
    q, k, v = (arrays.pop(name) for name in "qkv")
    return attention(q, k, v, **arrays)
