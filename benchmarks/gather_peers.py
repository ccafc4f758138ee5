"""Gather the peers' wheels into folders for PYTHONPATH, without what a benchmark doesn't need.

    python benchmarks/gather_peers.py peers
    python benchmarks/gather_peers.py peers fa4 --archive

For an H200 with Linux, Python 3.12, PyTorch 2.11 or JAX 0.11.2, and CUDA 13. Run it where there is
a network; with --archive each folder also becomes one .tar.xz to copy to a machine without one,
where `tar -xf` unpacks it. Nothing is installed. The folder is not for the repository: the wheels
have licences of their own. It prints the PYTHONPATH for benchmarks/compare_peers.py.
"""

from __future__ import annotations

import argparse
import lzma
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

EINOPS = "einops==0.8.2"
# PyTorch's and JAX's own attention comes with them.
WHEELS = {
    "fa3": ("tokenspeed-fa3==3.0.0.post20260810", EINOPS),
    "fa4": (
        "flash-attn-4==4.0.0b36",
        "nvidia-cutlass-dsl==4.8.1",
        "nvidia-cutlass-dsl-libs-base==4.8.1",
        "nvidia-cutlass-dsl-libs-core==4.8.1",
        "nvidia-cutlass-dsl-libs-cu13==4.8.1",
        "quack-kernels==0.6.5",
        "apache-tvm-ffi==0.1.15.post2",
        "torch-c-dlpack-ext==0.1.5",
        EINOPS,
    ),
    "jax-fa3": ("dew-flash-attn-cu13==0.3.6",),
}
# pip matches the number of manylinux_2_N exactly.
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_24_x86_64")
# Below a folder of WHEELS: what else must be on PYTHONPATH. .pth files aren't read there.
MORE_PATHS = {"fa4": ("nvidia_cutlass_dsl/dsl_packages",)}
# Static archives, headers, libraries of another processor, the profiler of the CuTe DSL.
UNNEEDED = ("**/*.a", "**/*.h", "**/*.hpp", "**/*.cuh", "**/aarch64-*", "**/dsl_packages/iket")
# FlashAttention-2 beside it is most of the wheel, is loaded at import, and isn't for Hopper.
DEW_LIBRARY = "dew_flash_attn/libdew_flash_attn.so"
DEW_MODULE = "dew_flash_attn/__init__.py"
DEW_CHANGES = (
    (
        '_library, _two = _load("libdew_flash_attn.so", "dew_flash_architectures")',
        "_library, _two = None, ()",
    ),
    (
        '((_library, "dew_flash_mha"), (_library3, "dew_flash3_mha"))',
        '((_library3, "dew_flash3_mha"),)',
    ),
)


def download(requirements: tuple[str, ...], folder: Path) -> list[Path]:
    """Download wheels with pip for Python 3.12 on Linux, whatever this machine is."""
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp"]
    subprocess.run([*command, *platforms, "--dest", str(folder), *requirements], check=True)
    return sorted(folder.glob("*.whl"))


def unpack(wheels: list[Path], folder: Path) -> None:
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)


def slim(folder: Path) -> None:
    """Delete what isn't needed to run on an H200."""
    for pattern in UNNEEDED:
        for path in list(folder.glob(pattern)):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    if (folder / DEW_LIBRARY).exists():
        (folder / DEW_LIBRARY).unlink()
        module = folder / DEW_MODULE
        module.write_text(without_fa2(module.read_text(encoding="utf-8")), encoding="utf-8")


def without_fa2(text: str) -> str:
    """Return dew_flash_attn's module changed so that it doesn't load FlashAttention-2."""
    for old, new in DEW_CHANGES:
        if text.count(old) != 1:
            raise ValueError(f"{DEW_MODULE} doesn't hold {old!r} once; another version?")
        text = text.replace(old, new)
    return text


def pack(folder: Path, archive: Path) -> None:
    """Pack a folder; what matters are libraries, so branches of x86 code are filtered first."""
    filters = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 9}]
    with (
        lzma.open(archive, "wb", filters=filters) as compressed,
        tarfile.open(fileobj=compressed, mode="w|") as packed,
    ):
        packed.add(folder, arcname=folder.name)


def size(path: Path) -> str:
    files = path.rglob("*") if path.is_dir() else [path]
    return f"{sum(file.stat().st_size for file in files if file.is_file()) / 2**20:.1f} MiB"


def python_path(folder: Path, names: list[str]) -> str:
    paths = []
    for name in names:
        paths.append(folder / name)
        paths += [folder / name / more for more in MORE_PATHS.get(name, ())]
    return ":".join(map(str, paths))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="gets one folder for each peer")
    parser.add_argument("peers", nargs="*", help=f"of {', '.join(WHEELS)} (default: all)")
    parser.add_argument("--archive", action="store_true", help="also make a .tar.xz of each")
    args = parser.parse_args()
    names = args.peers or list(WHEELS)
    unknown = sorted(set(names) - set(WHEELS))
    if unknown:
        parser.error(f"{', '.join(unknown)}: no such peer; known are {', '.join(WHEELS)}")
    for name in names:
        target = args.folder / name
        if target.exists():
            shutil.rmtree(target)
        target.mkdir(parents=True)
        with tempfile.TemporaryDirectory() as downloads:
            unpack(download(WHEELS[name], Path(downloads)), target)
        whole = size(target)
        slim(target)
        print(f"{target}: {size(target)} of {whole}", flush=True)
        if args.archive:
            archive = args.folder / f"{name}.tar.xz"
            pack(target, archive)
            print(f"{archive}: {size(archive)}", flush=True)
    print(f"PYTHONPATH={python_path(args.folder, names)}")


if __name__ == "__main__":
    main()
