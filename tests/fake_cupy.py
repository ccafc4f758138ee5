"""A CuPy that only remembers what it was asked for, to compile and launch without a GPU."""

from __future__ import annotations

import ctypes
import math
import sys
import types
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

from cupy_flash import attention, compile, device, driver, launch, plan
from cupy_flash.arrays import to_dtype
from cupy_flash.params import PARAMS_DTYPE
from cupy_flash.softmaxes.params import PARAMS_DTYPE as SOFTMAX_PARAMS

SHAPE = (2, 4, 6, 8)
LOG = "kernel.cuh(3): error: expected a ;\n1 error detected"


class CompileException(Exception):
    pass


class DriverError(Exception):
    pass


class FakeArray:
    """A cupy.ndarray over host memory: of a host array and a device, or as CuPy makes one."""

    def __init__(self, shape, dtype=0, memory=None, strides=None):
        if memory is None:
            host, index = shape, dtype
        else:
            host, index = np.ndarray(shape, dtype, memory.host, 0, strides), memory.device_id
        self.host, self.index = host, index
        self.shape, self.strides, self.dtype = host.shape, host.strides, host.dtype
        self._c_contiguous = host.flags.c_contiguous
        pointer = host.__array_interface__["data"][0]
        self.data = SimpleNamespace(ptr=pointer if host.size else 0, device_id=index)


class FakeCupy(types.ModuleType):
    """Counts compilations, records launches, knows two H200s.

    `broken` makes NVRTC refuse, `refusing` the driver, unless RawKernel asks it.
    """

    ndarray = FakeArray

    def __init__(self):
        super().__init__("cupy")
        self.current, self.capturing, self.broken, self.refusing = 0, False, False, False
        # CuPy's current stream of each device.
        self.streams = [0, 0]
        self.modules, self.functions, self.calls = [], [], []
        self.while_compiling = self.while_launching = lambda: None
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
        self.cuda.get_current_stream = self.get_current_stream
        self.cuda.alloc = self.alloc
        self.cuda.driver = SimpleNamespace(
            launchKernel=self.launch_kernel, CUDADriverError=DriverError
        )
        self.cuda.compiler = SimpleNamespace(CompileException=CompileException)
        self.cuda.nvrtc = SimpleNamespace(getVersion=lambda: (12, 9))

    def get_current_stream(self, device=None):
        ptr = self.streams[self.current if device is None else device]
        return SimpleNamespace(ptr=ptr, is_capturing=lambda: self.capturing)

    def alloc(self, size):
        host = np.full(size, 7, np.uint8)
        pointer = host.__array_interface__["data"][0]
        return SimpleNamespace(host=host, device_id=self.current, ptr=pointer)

    def launch_kernel(self, handle, *sizes_and_rest):
        *sizes, shared_mem, stream, parameters, extra = sizes_and_rest
        self.while_launching()
        if self.refusing:
            raise DriverError
        assert extra == 0
        address = ctypes.c_void_p.from_address(parameters).value
        params = ctypes.string_at(address, self.functions[handle].params_dtype.itemsize)
        self.functions[handle].record(sizes[:3], sizes[3:], params, shared_mem, stream)

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
        self.params_dtype = SOFTMAX_PARAMS if "softmax" in name else PARAMS_DTYPE
        self.kernel = SimpleNamespace(ptr=len(cupy.functions))
        cupy.functions.append(self)

    def __call__(self, grid, block, arguments, *, shared_mem=0):
        (argument,) = arguments
        assert isinstance(argument, np.void), "CuPy passes it by value"
        sizes = ((*size, 1, 1)[:3] for size in (grid, block))
        self.record(*sizes, argument.tobytes(), shared_mem, None)

    def record(self, grid, block, params, shared_mem, stream):
        assert self.cupy.current == self.loaded_on, "launched on another device"
        call = SimpleNamespace(grid=tuple(grid), block=tuple(block), shared_mem=shared_mem)
        call.function, call.stream = self, stream
        (call.params,) = np.frombuffer(params, self.params_dtype)
        self.cupy.calls.append(call)


def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCupy]:
    """Put a new fake in CuPy's place, and forget what another one left in our caches."""
    fake = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setitem(sys.modules, "cupy.cuda", fake.cuda)
    backends = {f"cupy_backends{name}": types.ModuleType(name) for name in ("", ".cuda")}
    backends["cupy_backends.cuda.stream"] = SimpleNamespace(get_default_stream_ptr=lambda: 1)
    for name, module in backends.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(compile, "_kernels", {})
    monkeypatch.setattr(compile, "_locks", {})
    monkeypatch.setattr(plan, "_plans", {})
    caches = device.actual, device.nvrtc_version, driver.driver
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
