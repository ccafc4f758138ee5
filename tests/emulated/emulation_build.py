"""Compile CUDA kernel text to a shared library that runs it on the CPU, and keep what was built."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

EMULATOR = Path(__file__).resolve().parent / "emulator"

FLAGS = (
    "-std=c++17",
    # Builds take longer than launches.
    "-Og",
    "-fPIC",
    # Two loaded libraries must not share the emulator's state.
    "-fvisibility=hidden",
    # Kernels move values of any type as 16-byte vectors.
    "-fno-strict-aliasing",
    # Results must not depend on whether the host has fused multiply-add.
    "-ffp-contract=off",
    "-Wall",
    # `#pragma unroll` means nothing to a host compiler.
    "-Wno-unknown-pragmas",
    # Nor does it matter what older compilers passed otherwise.
    "-Wno-psabi",
)
# Of the emulator's own functions, where kernels spend most of their time: kernels by warpgroups run
# twice as fast as by -O2. What is built stays on the machine.
RUNTIME_FLAGS = ("-O3", "-march=native", "-Werror")
# A function that the emulator lacks is an error of the build, not of some later launch.
LINK = ("-shared", "-Wl,-z,defs")

SANITIZE_FLAGS = (
    "-fsanitize=undefined",
    "-fno-sanitize-recover=all",
    "-DEMU_SANITIZE",
)
# sanitizer.cpp takes the place of the run time, which would be linked by default.
SANITIZE_LINK = ("-nodefaultlibs", "-lm", "-lc", "-lgcc")

LAUNCHER = """
#line 1 "launcher"
extern "C" __attribute__((visibility("default")))
const char* emulate_{entry}(const void* params, const emu::Launch* config) {{
  return emu::launch(&{entry}, params, *config);
}}
extern "C" __attribute__((visibility("default")))
unsigned long long emulate_{entry}_params_size() {{ return emu::params_size(&{entry}); }}
"""


class BuildError(RuntimeError):
    """The compiler rejected the kernel text; the message is what it printed."""


def compiler() -> str | None:
    """Path of ``$CXX``, or else of g++; None if it is not installed."""
    return shutil.which(os.environ.get("CXX") or "g++")


def build(
    source: str,
    entry: str,
    params_size: int,
    *,
    sanitize: bool = False,
    ucontext: bool = False,
    strict: bool = True,
    cache: Path | None = None,
) -> Path:
    """Compile kernel text to a shared library, or find the one that was compiled before.

    Parameters
    ----------
    source : str
        Kernel text without includes. `entry` must be ``extern "C" __global__``, return void and
        take one struct by value.
    entry : str
        Name of the kernel.
    params_size : int
        Size in bytes that the caller expects of the struct.
    sanitize : bool, default False
        Add UndefinedBehaviorSanitizer: indices outside register arrays, misaligned shared-memory
        vectors, shifts, signed overflow. Its reports fail the launch.
    ucontext : bool, default False
        Switch fibers through POSIX ucontext even where the assembly exists.
    strict : bool, default True
        Treat warnings as errors. Planted defects may leave a variable unused: build them without.
    cache : Path, optional
        Folder of built libraries; default ``$CUPY_FLASH_EMULATION_CACHE`` or a private folder
        under the system's temporary one.

    Returns
    -------
    Path
        The library, named by a hash of everything that went into it.

    Raises
    ------
    BuildError
        The compiler reported an error, or the struct has another size than `params_size`.
    """
    cxx = compiler()
    if cxx is None:
        raise BuildError("no C++ compiler: install g++ or set CXX")
    flags = (
        *FLAGS,
        *(SANITIZE_FLAGS if sanitize else ()),
        *(("-DEMU_UCONTEXT",) if ucontext else ()),
    )
    text = f'#line 1 "{entry}"\n{source}\n{LAUNCHER.format(entry=entry)}'
    folder = cache if cache is not None else _default_cache()
    folder.mkdir(parents=True, exist_ok=True)
    link = (*LINK, *(SANITIZE_LINK if sanitize else ()))
    options = " ".join((*flags, *RUNTIME_FLAGS, *link))
    key = _digest(_compiler_version(cxx), _emulator_text(), options, entry, text)
    library = folder / f"{entry}-{key}.so"
    with _exclusive(library.with_suffix(".lock")):
        if not library.exists():
            header, runtime = _emulator(cxx, flags, folder)
            command = [cxx, *flags, "-include", str(header), f"{entry}.cpp", str(runtime), *link]
            _compile(command, text, entry, library)
    warnings = _warnings_of(library)
    if strict and warnings.exists():
        raise BuildError(f"{entry} compiles with warnings:\n{warnings.read_text()}")
    actual = _size_of_params(library, entry)
    if actual != params_size:
        raise BuildError(
            f"params_size: expected {params_size} bytes, but the struct of {entry} has {actual}"
        )
    return library


def _emulator(cxx: str, flags: Sequence[str], cache: Path) -> tuple[Path, Path]:
    """Return what each kernel includes and what it's linked with, built once for the same flags.

    That is more than half of what a kernel would take.
    """
    version = _compiler_version(cxx)
    options = " ".join((*flags, *RUNTIME_FLAGS))
    key = _digest(version, _emulator_text(), str(EMULATOR), options)
    header, runtime = (cache / f"emulator-{key}{suffix}" for suffix in (".hpp", ".o"))
    # GCC takes it in place of the header of that name.
    precompiled = cache / f"{header.name}.gch"
    with _exclusive(header.with_suffix(".lock")):
        if not runtime.exists():
            include = f'#include "{EMULATOR / "cuda.hpp"}"\n'
            header.write_text(include)
            # Clang refuses a precompiled header once the files in it have other times.
            if "Free Software Foundation" in version:
                command = [cxx, *flags, "-Werror", "-x", "c++-header", "cuda.cpp"]
                _compile(command, include, "cuda", precompiled)
            include = f'#include "{EMULATOR / "runtime.cpp"}"\n'
            command = [cxx, *flags, *RUNTIME_FLAGS, "-c", "runtime.cpp"]
            _compile(command, include, "runtime", runtime)
    return header, runtime


def _compile(command: list[str], text: str, name: str, target: Path) -> None:
    """Compile beside the target and move it there in one step, what the compiler said first."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        Path(folder, f"{name}.cpp").write_text(text)
        done = subprocess.run(
            [*command, "-o", "built"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise BuildError(f"{name} does not compile:\n{done.stderr}")
        if done.stderr:
            _warnings_of(target).write_text(done.stderr)
        os.replace(Path(folder, "built"), target)


def _warnings_of(target: Path) -> Path:
    return target.with_suffix(".warnings")


def _size_of_params(library: Path, entry: str) -> int:
    """Size of the struct as the compiler laid it out, in bytes."""
    size = getattr(ctypes.CDLL(str(library)), f"emulate_{entry}_params_size")
    size.restype = ctypes.c_ulonglong
    return int(size())


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Let one process build while others that want the same library wait for it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _default_cache() -> Path:
    """Folder for built libraries that no other user can plant code in."""
    named = os.environ.get("CUPY_FLASH_EMULATION_CACHE")
    if named:
        return Path(named)
    folder = Path(tempfile.gettempdir(), f"cupy_flash_emulation-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(
            f"{folder} belongs to another user: set CUPY_FLASH_EMULATION_CACHE to a folder of yours"
        )
    return folder


@functools.cache
def _compiler_version(cxx: str) -> str:
    return subprocess.run([cxx, "--version"], capture_output=True, text=True, check=True).stdout


@functools.cache
def _emulator_text() -> str:
    return "".join(path.read_text() for path in sorted(EMULATOR.glob("*.?pp")))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
