"""Same inputs, same bits: in every batch, beside any other rows, on a busy GPU, in any layout."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import cupy_flash
from cupy_flash import accuracy, reference
from cupy_flash.products import loosest
from layouts import OUT_LAYOUTS, PITCHES, strided
from problems import DTYPES, KERNEL_DTYPES, KERNELS_AND_DTYPES

cupy = pytest.importorskip("cupy")

pytestmark = pytest.mark.gpu

RUNS = 20
BATCH, HEADS, KV_HEADS, M, N, D, P = 3, 4, 2, 150, 230, 72, 40

every_kernel_and_dtype = pytest.mark.parametrize(("kernel", "dtype"), KERNELS_AND_DTYPES)


def drawn(dtype: str) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(1)
    shapes = ((HEADS, M, D), (KV_HEADS, N, D), (KV_HEADS, N, P))
    return [rng.standard_normal((BATCH, *s), np.float32).astype(DTYPES[dtype]) for s in shapes]


def on_gpu(*arrays: np.ndarray[Any, Any]) -> list[Any]:
    copies = [cupy.asarray(x) for x in arrays]
    # A non-blocking stream would not wait for the copies.
    cupy.cuda.Device().synchronize()
    return copies


def bits(result: tuple[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """Return out and lse as unsigned integers."""
    hosts = [np.ascontiguousarray(x.get()) for x in result]
    return [x.view(f"u{x.itemsize}") for x in hosts]


def assert_same(got: tuple[Any, Any], want: Any, when: str) -> None:
    for name, ours, theirs in zip(("out", "lse"), bits(got), want, strict=True):
        differ = np.argwhere(ours != theirs)
        assert not len(differ), (
            f"{len(differ)} of {ours.size} elements of {name} have other bits {when}, the first "
            f"at {tuple(differ[0])}"
        )


@every_kernel_and_dtype
def test_a_busy_gpu_changes_no_bit(kernel: str, dtype: str) -> None:
    q, k, v = on_gpu(*drawn(dtype))
    options = {"kernel": kernel, "causal": True, "return_lse": True}
    want = bits(cupy_flash.attention(q, k, v, **options))
    # 1 GiB: it fills the multiprocessors and drives everything else out of the L2 cache.
    load = cupy.zeros(2**28, np.float32)
    cupy.add(load, 1, out=load)
    results = cupy_flash.attention(q, k, v, **options)
    cupy.cuda.Device().synchronize()
    neighbour, ours = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    overlapped = 0
    for run in range(RUNS):
        with neighbour:
            for _ in range(10 + run):
                cupy.add(load, 1, out=load)
        with ours:
            cupy_flash.attention(q, k, v, out=results, **options)
            ours.synchronize()
            overlapped += not neighbour.done
            assert_same(results, want, f"beside a neighbour, in run {run}")
        neighbour.synchronize()
    assert overlapped, "the neighbour was never running when attention ended"


@pytest.mark.parametrize("causal", [False, True])
@every_kernel_and_dtype
def test_a_head_does_not_depend_on_the_others(kernel: str, dtype: str, causal: bool) -> None:
    q, k, v = on_gpu(*drawn(dtype))
    options = {"kernel": kernel, "causal": causal, "return_lse": True}
    out, lse = bits(cupy_flash.attention(q, k, v, **options))
    for entry in range(BATCH):
        one = np.s_[entry : entry + 1]
        alone = cupy_flash.attention(q[one], k[one], v[one], **options)
        assert_same(alone, (out[one], lse[one]), f"when entry {entry} is the whole batch")
        for head in range(HEADS):
            kv = head * KV_HEADS // HEADS
            alone = cupy_flash.attention(q[entry, head], k[entry, kv], v[entry, kv], **options)
            want = out[entry, head], lse[entry, head]
            assert_same(alone, want, f"when head {head} of entry {entry} is alone")
    many = on_gpu(*(np.concatenate([x] * 200) for x in drawn(dtype)))
    got = cupy_flash.attention(*many, **options)
    want = [np.concatenate([x] * 200) for x in (out, lse)]
    assert_same(got, want, f"in a batch of {200 * BATCH}")
    backwards = cupy_flash.attention(q[::-1], k[::-1], v[::-1], **options)
    assert_same(backwards, (out[::-1], lse[::-1]), "when the batch is reversed")
    repeated = on_gpu(*(np.repeat(x, HEADS // KV_HEADS, axis=1) for x in drawn(dtype)[1:]))
    got = cupy_flash.attention(q, *repeated, **options)
    assert_same(got, (out, lse), "when the key heads are repeated instead of shared")


@pytest.mark.parametrize("causal", [False, True])
@every_kernel_and_dtype
def test_a_row_does_not_depend_on_the_others(kernel: str, dtype: str, causal: bool) -> None:
    q, k, v = on_gpu(*drawn(dtype))
    options = {"kernel": kernel, "causal": causal, "return_lse": True}
    out, lse = bits(cupy_flash.attention(q, k, v, **options))
    for begin, end in [(0, 1), (M - 1, M), (0, 63), (1, 65), (31, 32), (5, 149), (64, M), (77, 79)]:
        rows = np.s_[:, :, begin:end]
        # The rows keep their places among the keys.
        offset = N - M + begin
        some = cupy_flash.attention(q[rows], k, v, offset=offset, **options)
        assert_same(some, (out[rows], lse[rows]), f"when rows {begin} to {end} are alone")
    other = drawn(dtype)[0]
    other[:, :, ::2] = np.nan
    got = cupy_flash.attention(*on_gpu(other), k, v, **options)
    odd = np.s_[:, :, 1::2]
    assert_same(tuple(x[odd] for x in got), (out[odd], lse[odd]), "when the other rows are NaN")


def options_of_heads(hidden: float = 0.3) -> dict[str, np.ndarray[Any, Any]]:
    """Draw one array for each option; all of them tell heads, batch entries or rows apart."""
    rng = np.random.default_rng(2)
    mask = rng.random((BATCH, 1, 1, N)) >= hidden
    bias = rng.normal(0, 1, (HEADS, M, N))
    bias[:, 3] = bias[0, :, 100] = -np.inf
    return {
        "mask": mask,
        "bias": bias.astype(np.float32),
        "alibi_slopes": np.array([0.1, 0, 0.02, 0.3], np.float32),
        "sinks": rng.normal(0, 1, (BATCH, HEADS)).astype(np.float32),
    }


def scores(**options: Any) -> dict[str, Any]:
    return {"softcap": 4.0, "window": (120, 60), "return_lse": True, **options}


@every_kernel_and_dtype
def test_options_of_a_head_or_row_alone(kernel: str, dtype: str) -> None:
    q, k, v = on_gpu(*drawn(dtype))
    small = options_of_heads()
    on_device = dict(zip(small, on_gpu(*small.values()), strict=True))
    out, lse = bits(cupy_flash.attention(q, k, v, **scores(kernel=kernel), **on_device))
    full = {"mask": (BATCH, HEADS, M, N), "bias": (BATCH, HEADS, M, N)}
    spread = {name: np.broadcast_to(x, full.get(name, (BATCH, HEADS))) for name, x in small.items()}
    for entry, head, (begin, end) in itertools.product(
        range(BATCH), range(HEADS), [(0, M), (0, 1), (63, 65), (M - 1, M)]
    ):
        own = {name: np.array(x[entry, head]) for name, x in spread.items()}
        own |= {name: own[name][begin:end] for name in full}
        kv = head * KV_HEADS // HEADS
        alone = cupy_flash.attention(
            q[entry, head, begin:end],
            k[entry, kv],
            v[entry, kv],
            offset=N - M + begin,
            **scores(kernel=kernel),
            **dict(zip(own, on_gpu(*own.values()), strict=True)),
        )
        want = out[entry, head, begin:end], lse[entry, head, begin:end]
        assert_same(alone, want, f"when rows {begin} to {end} of head {head} are alone")


@every_kernel_and_dtype
def test_nan_where_no_row_looks_changes_no_bit(kernel: str, dtype: str) -> None:
    q, k, v = drawn(dtype)
    small = dict(zip(("mask", "bias"), on_gpu(*list(options_of_heads().values())[:2]), strict=True))
    options = scores(kernel=kernel, **small)
    want = bits(cupy_flash.attention(*on_gpu(q, k, v), **options))
    hidden = ~options_of_heads()["mask"][:, 0, 0]
    for entries in ((0,), (0, 1, 2)):
        for entry in entries:
            k[entry, :, hidden[entry]] = v[entry, :, hidden[entry]] = np.nan
        q[:, :, 3] = np.nan
        got = cupy_flash.attention(*on_gpu(q, k, v), **options)
        assert_same(got, want, f"with NaN in hidden keys of entries {entries}")


def misaligned(x: np.ndarray[Any, Any], shift: int) -> Any:
    """Upload an array to `shift` elements behind a multiple of 16 bytes."""
    memory = cupy.empty(x.size + shift, x.dtype)
    memory[shift:].set(x.ravel())
    return memory[shift:].reshape(x.shape)


# With fewer columns, rows end inside a unit and sm80 copies smaller ones.
@pytest.mark.parametrize(("less", "of_sm80"), [(0, {16, 4, 2}), (2, {4, 2}), (3, {2})])
@every_kernel_and_dtype
def test_alignment_and_strides_change_no_bit(
    kernel: str, dtype: str, less: int, of_sm80: set[int]
) -> None:
    hosts = [np.ascontiguousarray(x[..., less:]) for x in drawn(dtype)]
    options = {"kernel": kernel, "causal": True, "return_lse": True}
    want = bits(cupy_flash.attention(*on_gpu(*hosts), **options))
    views = {
        f"{shift} elements off": [misaligned(x, shift) for x in hosts] for shift in (0, 1, 2, 4, 8)
    }
    for layout in (*OUT_LAYOUTS, *PITCHES):
        placed = [strided(x.shape, x.dtype, layout) for x in hosts]
        for view, x in zip(placed, hosts, strict=True):
            view.numpy()[...] = x
        views[layout] = [view.cupy() for view in placed]
    units = set()
    for what, arrays in views.items():
        assert_same(cupy_flash.attention(*arrays, **options), want, f"with arrays {what}")
        units.add(cupy_flash.explain(*arrays, **options).variant.unit)
    assert units == (of_sm80 if kernel == "sm80" else {0})


@pytest.mark.parametrize("causal", [False, True])
@every_kernel_and_dtype
def test_lengths_that_are_the_full_sizes_change_no_bit(
    kernel: str, dtype: str, causal: bool
) -> None:
    q, k, v = on_gpu(*drawn(dtype))
    options = {"kernel": kernel, "causal": causal, "return_lse": True}
    want = bits(cupy_flash.attention(q, k, v, **options))
    rows, keys = (cupy.full(BATCH, extent, np.int32) for extent in (M, N))
    got = cupy_flash.attention(q, k, v, q_lengths=rows, k_lengths=keys, **options)
    assert_same(got, want, "with lengths of all rows and all keys")


@pytest.mark.parametrize("kind", ["plain", "causal", "everything"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernels_agree_within_both_errors(dtype: str, kind: str) -> None:
    q, k, v = drawn(dtype)
    options: dict[str, Any] = {"causal": kind == "causal"}
    if kind == "everything":
        options |= {"softcap": 4.0, "window": (120, 60), **options_of_heads()}
    scale = reference.default_scale(D)
    found = {}
    for kernel in (kernel for kernel, able in KERNEL_DTYPES.items() if dtype in able):
        given = {
            name: cupy.asarray(x) if isinstance(x, np.ndarray) else x for name, x in options.items()
        }
        results = cupy_flash.attention(*on_gpu(q, k, v), **given, return_lse=True, kernel=kernel)
        exact = reference.attention(q, k, v, **options, products=loosest(kernel, dtype))
        bounds = (
            accuracy.out_bound(exact, dtype, q, k, v, scale, kernel),
            accuracy.lse_bound(exact, dtype, q, k, scale),
        )
        found[kernel] = [
            (x.get().astype(bound.dtype), bound) for x, bound in zip(results, bounds, strict=True)
        ]
    for first, second in itertools.combinations(found, 2):
        pairs = zip(("out", "lse"), found[first], found[second], strict=True)
        for name, (one, bound), (other, other_bound) in pairs:
            compared = accuracy.compare(one, other, bound + other_bound)
            assert compared.ok, f"{name} of {first} against {second}: {compared}"
            assert np.isfinite(one.astype(np.float64)).all()
