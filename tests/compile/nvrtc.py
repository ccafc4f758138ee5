"""The NVRTC libraries that the compile tests go through: one per CUDA major, in one process.

CuPy and cuda-bindings load one NVRTC per process, the first that cuda-pathfinder finds. Here each
is opened by its path, from NVIDIA's Linux wheels.

    python tests/compile/nvrtc.py

installs those that are missing, outside of site-packages: in there, pathfinder takes CUDA 13's
before CUDA 12's, so that CuPy for CUDA 12 would compile with NVRTC 13 too.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

# The versions that budget.json holds figures of, and the wheels that bring them: the last of CUDA
# 12 and the newest of CUDA 13. To the minor version, because another one gives other registers.
PINS = {"12.9": "nvidia-cuda-nvrtc-cu12==12.9.*", "13.5": "nvidia-cuda-nvrtc==13.5.*"}
# Within the environment, so that it goes when that goes.
FOLDER = Path(sys.prefix) / "nvrtc"


class CompilationError(Exception):
    """What NVRTC said of a text that it didn't compile."""


@dataclass(frozen=True)
class Compiler:
    """One NVRTC library.

    Attributes
    ----------
    version : str
        Major and minor: "12.9".
    library : ctypes.CDLL
        The opened library.
    """

    version: str
    library: ctypes.CDLL

    def compile(self, text: str, name: str, options: Sequence[str]) -> str:
        """Compile a text; return the log, or raise CompilationError with it."""
        program = ctypes.c_void_p()
        self._call(
            "nvrtcCreateProgram",
            ctypes.byref(program),
            text.encode(),
            name.encode(),
            ctypes.c_int(0),
            None,
            None,
        )
        try:
            arguments = (ctypes.c_char_p * len(options))(*map(str.encode, options))
            result = self.library.nvrtcCompileProgram(
                program, ctypes.c_int(len(options)), arguments
            )
            log = self._log(program)
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(program))
        if result:
            raise CompilationError(f"NVRTC {self.version}: {self._error(result)}\n{log}")
        return log

    def _log(self, program: ctypes.c_void_p) -> str:
        size = ctypes.c_size_t()
        self._call("nvrtcGetProgramLogSize", program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        self._call("nvrtcGetProgramLog", program, log)
        return log.value.decode()

    def _call(self, function: str, *arguments: object) -> None:
        result = getattr(self.library, function)(*arguments)
        if result:
            raise CompilationError(f"NVRTC {self.version}, {function}: {self._error(result)}")

    def _error(self, result: int) -> str:
        describe = self.library.nvrtcGetErrorString
        describe.restype = ctypes.c_char_p
        text: bytes = describe(result)
        return text.decode()


@functools.cache
def compilers() -> dict[str, Compiler]:
    """Return every NVRTC of this environment by its version, oldest first."""
    found: dict[str, Compiler] = {}
    for path in _libraries():
        library = ctypes.CDLL(str(path))
        major, minor = ctypes.c_int(), ctypes.c_int()
        library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        version = f"{major.value}.{minor.value}"
        found.setdefault(version, Compiler(version, library))
    return {version: found[version] for version in sorted(found, key=_numbers)}


def versions() -> list[str]:
    """Return the versions to test, those that should be here and those that are, oldest first."""
    return sorted({*PINS, *compilers()}, key=_numbers)


def problem(version: str) -> str | None:
    """Say how to install a version that isn't here."""
    if version in compilers():
        return None
    return f"NVRTC {version} isn't installed: {shlex.join(install(version))}"


def install(version: str) -> list[str]:
    """Return the command that installs a version apart from the environment's packages."""
    # A folder each: pip replaces what two of them have in common.
    apart = ["--no-deps", "--upgrade", "--target", str(FOLDER / version)]
    return [sys.executable, "-m", "pip", "install", *apart, PINS[version]]


def _libraries() -> Iterator[Path]:
    # CuPy's own comes first: pathfinder takes any NVRTC that the process has loaded already, and
    # remembers its answer, so from here on CuPy gets what it would get without this module.
    try:
        from cuda import pathfinder
    except ImportError:
        pass
    else:
        try:
            loaded = pathfinder.load_nvidia_dynamic_lib("nvrtc")
        except pathfinder.DynamicLibNotFoundError:
            pass
        else:
            if loaded.abs_path:
                yield Path(loaded.abs_path)
    for version, pin in PINS.items():
        for folders in (sys.path, [str(FOLDER / version)]):
            for distribution in metadata.distributions(name=pin.split("==")[0], path=folders):
                for file in distribution.files or ():
                    if re.fullmatch(r"libnvrtc\.so\.\d+", file.name):
                        yield Path(str(distribution.locate_file(file)))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def main() -> None:
    parser = argparse.ArgumentParser(description="Install NVRTC libraries for the compile tests.")
    parser.add_argument("--only", choices=PINS, help="version; default: each")
    only = parser.parse_args().only
    for version in [only] if only else PINS:
        if problem(version):
            subprocess.run(install(version), check=True)


if __name__ == "__main__":
    main()
