"""What a user installs: wheel, sdist, editable install, metadata and the cost of the import."""

from __future__ import annotations

import email
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from email.message import Message
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
JUNK = shutil.ignore_patterns("__pycache__", ".*_cache", ".hypothesis")
ATTENTION = """
import numpy as np
import cupy_flash as cf
x = np.ones((2, 3, 4), np.float32)
np.testing.assert_allclose(cf.attention(x, x, x), x, rtol=1e-6)
"""


def run(command: list[str | Path], **options) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


def python(code: str, *path: Path) -> str:
    """Run code in a fresh interpreter that looks in `path` before what is installed."""
    start = f"import sys; sys.path[:0] = {[str(p) for p in path]!r}\n"
    return run([sys.executable, "-I", "-c", start + code])


def files_under(folder: Path) -> set[str]:
    """Files of the project in `folder`, without what tools leave there."""
    found = {path.relative_to(ROOT) for path in folder.rglob("*") if path.is_file()}
    return {
        path.as_posix()
        for path in found
        if not any(part.startswith((".", "__pycache__", "_build")) for part in path.parts)
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """The sdist, and the wheel built from that sdist, as `python -m build` makes them."""
    folder = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT])
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")
    return SimpleNamespace(wheel=wheel, sdist=sdist)


@pytest.fixture(scope="module")
def unpacked(built: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(built.wheel) as wheel:
        wheel.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def metadata(unpacked: Path) -> Message:
    (path,) = unpacked.glob("*.dist-info/METADATA")
    return email.message_from_string(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def requirements(metadata: Message) -> list[Requirement]:
    return [Requirement(line) for line in metadata.get_all("Requires-Dist")]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what an editable install needs, to be edited."""
    tree = tmp_path / "tree"
    for name in ("cupy_flash", "kernels_cu"):
        shutil.copytree(ROOT / name, tree / name, ignore=JUNK)
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, tree / name)
    return tree


def test_wheel_holds_the_package_and_every_kernel_source(unpacked: Path):
    package = files_under(ROOT / "cupy_flash")
    kernels = files_under(ROOT / "kernels_cu")
    assert any(name.endswith(".cuh") for name in kernels)
    assert {"cupy_flash/py.typed", "cupy_flash/data/NOTICE.md"} <= package
    found = {
        path.relative_to(unpacked).as_posix()
        for path in (unpacked / "cupy_flash").rglob("*")
        if path.is_file()
    }
    assert found == package | {f"cupy_flash/{name}" for name in kernels}


def test_wheel_installs_one_package_and_its_licence(unpacked: Path):
    top = {path.name for path in unpacked.iterdir()}
    (info,) = (path for path in unpacked.iterdir() if path.suffix == ".dist-info")
    assert top == {"cupy_flash", info.name}
    assert (info / "licenses" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_sdist_holds_sources_tests_and_docs(built: SimpleNamespace):
    with tarfile.open(built.sdist) as sdist:
        found = {name.split("/", 1)[1] for name in sdist.getnames()}
    wanted = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md"}
    for folder in ("cupy_flash", "kernels_cu", "tests", "examples", "docs"):
        wanted |= files_under(ROOT / folder)
    assert wanted - found == set()


def test_recorded_activations_load_from_the_wheel(unpacked: Path):
    names = python(
        "from cupy_flash import activations\n"
        f"assert activations.__file__.startswith({str(unpacked)!r}), activations.__file__\n"
        "for a in activations.load():\n"
        "    assert a.q.shape == a.k.shape == a.v.shape == (12, int(a.name.split('/')[1]), 32)\n"
        "    assert a.q.dtype == a.k.dtype == a.v.dtype == 'float16'\n"
        "    print(a.name)\n",
        unpacked,
    )
    assert names.split() == ["layer0/45", "layer0/301", "layer5/13", "layer5/45"]


def test_installed_wheel_compiles_its_own_sources(unpacked: Path):
    root = Path(python("from cupy_flash import source; print(source.root())", unpacked))
    assert root == unpacked / "cupy_flash" / "kernels_cu"
    assert any(root.rglob("*.cuh"))


def test_editable_install_compiles_the_edited_sources(tree: Path, tmp_path: Path):
    if find_spec("pip") is None and "CI" not in os.environ:
        pytest.skip("this environment has no pip")
    builder = venv.EnvBuilder(with_pip=False, symlinks=True)
    builder.create(tmp_path / "env")
    interpreter = builder.ensure_directories(tmp_path / "env").env_exe
    site = Path(run([interpreter, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]))
    # NumPy and hatchling come from here. A path in a .pth is not itself searched for .pth files, so
    # an editable install of this very project stays out of sight.
    outer = {str(Path(find_spec(name).origin).parents[1]) for name in ("numpy", "hatchling")}
    (site / "zz_outer.pth").write_text("\n".join(sorted(outer)), encoding="utf-8")
    offline = ["--no-index", "--no-build-isolation", "--no-deps", "--ignore-installed"]
    pip = [sys.executable, "-m", "pip", "--python", interpreter, "install", *offline]
    run([*pip, "--editable", tree], cwd=tmp_path)

    header = min((tree / "kernels_cu").rglob("*.cuh"))
    header.write_text("// edited after the install\n", encoding="utf-8")
    name = header.relative_to(tree / "kernels_cu").as_posix()
    code = f"from cupy_flash import source; print(source.flatten({name!r}))"
    flat = run([interpreter, "-I", "-c", code], cwd=tmp_path)
    assert "// edited after the install" in flat.splitlines()
    assert not (site / "cupy_flash").exists(), "a copy that will go stale"


def test_version_is_that_of_the_package(metadata: Message):
    assert metadata["Version"] == python("import cupy_flash; print(cupy_flash.__version__)", ROOT)
    assert f"## [{metadata['Version']}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_plain_install_needs_no_gpu_package(requirements: list[Requirement]):
    plain = {r.name for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})}
    assert plain == {"numpy", "ml-dtypes"}


@pytest.mark.parametrize("major", ["12", "13"])
def test_cuda_extra_pairs_cupy_with_its_compiler(requirements: list[Requirement], major: str):
    def selected(platform: str) -> dict[str, Requirement]:
        chosen = {"extra": f"cuda{major}x", "sys_platform": platform}
        return {r.name: r for r in requirements if r.marker and r.marker.evaluate(chosen)}

    for platform in ("linux", "win32"):
        found = selected(platform)
        assert set(found) == {f"cupy-cuda{major}x", "cuda-toolkit"}
        assert found["cuda-toolkit"].extras == {"cudart", "nvrtc"}
        assert found["cuda-toolkit"].specifier.contains(f"{major}.0.1")
        assert not found["cuda-toolkit"].specifier.contains(f"{int(major) + 1}.0.0")
        assert not found[f"cupy-cuda{major}x"].specifier.contains("13.6.0")
    assert selected("darwin") == {}


def test_no_requirement_brings_the_whole_toolkit_or_builds_cupy(
    metadata: Message, requirements: list[Requirement]
):
    extras = {"bench", "cuda12x", "cuda13x", "docs", "examples", "test"}
    assert set(metadata.get_all("Provides-Extra")) == extras
    assert all(r.name != "cupy" and "ctk" not in r.extras for r in requirements)


def test_import_leaves_cupy_alone():
    loaded = python("import cupy_flash; print(*sys.modules)", ROOT).split()
    assert "cupy_flash" in loaded
    assert {"cupy", "cupyx", "cupy_backends"}.isdisjoint(loaded)


def test_works_without_cupy():
    blocked = """
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("cupy", "cupyx", "cupy_backends"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
try:
    import cupy
except ModuleNotFoundError:
    pass
else:
    raise SystemExit("the blocker does not block")
"""
    python(blocked + ATTENTION, ROOT)


def test_numpy_call_leaves_cupy_alone():
    python(ATTENTION + "assert 'cupy' not in sys.modules\n", ROOT)


def test_bfloat16_alone_imports_what_has_it():
    python(ATTENTION + "assert 'ml_dtypes' not in sys.modules\n", ROOT)


def test_import_is_cheap():
    """Seconds beyond those of NumPy, best of five, so that a busy machine does not decide."""
    timed = (
        "import numpy, time\n"
        "start = time.perf_counter()\n"
        "import cupy_flash\n"
        "print(time.perf_counter() - start)"
    )
    assert min(float(python(timed, ROOT)) for _ in range(5)) < 0.3
