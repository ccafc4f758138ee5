"""Which kernel computes a problem, why, and whether it fits the GPU."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from cupy_flash.arrays import planned, to_dtype
from cupy_flash.device import _KNOWN, Device, assumed
from cupy_flash.options import check_options
from cupy_flash.problem import make_problem
from cupy_flash.products import FMA, SIX_BFLOAT16, THREE_BFLOAT16
from cupy_flash.select import (
    DEFAULT_SHARED_MEMORY,
    HEAD_DIM_BUCKETS,
    MOST_KEYS,
    RESERVED_SHARED_MEMORY,
    SHARED_MEMORY,
    SIMT_TILES,
    SM80_TILES,
    choose,
    resident_blocks,
)
from cupy_flash.variant import WARP
from problems import DTYPES

FAMILIES = ("naive", "simt")
ARCHS = tuple(_KNOWN)
EDGES = (0, 1, 31, 32, 33, 64, 65, 127, 128, 129, 255, 256)


def problem_of(d=64, p=None, dtypes=("float32",) * 3, **options):
    p = d if p is None else p
    shapes = (2, 4, 33, d), (2, 2, 77, d), (2, 2, 77, p)
    infos = (planned(s, to_dtype(t)) for s, t in zip(shapes, dtypes, strict=True))
    return make_problem(*infos, check_options(**options))


def every_variant(arch):
    lengths = planned((2,), np.dtype(np.int32))
    for dtype, d, p, kernel in itertools.product(DTYPES, EDGES, EDGES, FAMILIES):
        options = {"causal": True, "k_lengths": lengths} if d == p else {}
        problem = problem_of(d, p, (dtype,) * 3, kernel=kernel, **options)
        yield problem, choose(problem, assumed(arch)).variant


@pytest.mark.parametrize("arch", ARCHS)
def test_every_variant_fits_the_gpu(arch):
    device = assumed(arch)
    count = 0
    for problem, variant in every_variant(arch):
        count += 1
        assert 0 <= variant.shared_memory <= device.shared_memory, variant
        assert variant.tile.threads % WARP == 0
        assert WARP <= variant.tile.threads <= 1024
        assert variant.arch == arch
        assert variant.family == problem.kernel
        assert (variant.shared_memory == 0) == (variant.family == "naive")
        if variant.family == "simt":
            assert problem.d <= variant.head_dim
            assert problem.p <= variant.head_dim_v
    assert count == len(DTYPES) * len(EDGES) ** 2 * len(FAMILIES)


@pytest.mark.parametrize("arch", [arch for arch in ARCHS if arch >= 80])
def test_every_sm80_variant_fits_the_gpu(arch):
    device = assumed(arch)
    for d, p in itertools.product(EDGES, EDGES):
        problem = problem_of(d, p, ("float16",) * 3, kernel="sm80")
        variant = choose(problem, device).variant
        assert variant.shared_memory <= SHARED_MEMORY["sm80"] <= device.shared_memory
        assert d <= variant.head_dim
        assert p <= variant.head_dim_v
        problem = problem_of(d, p, ("float16",) * 3, kernel="sm80", **MASK_AND_BIAS)
        assert choose(problem, device).variant.shared_memory <= device.shared_memory


@pytest.mark.parametrize(("d", "unit"), [(64, 16), (66, 4), (67, 2)])
def test_sm80_copies_the_largest_units_that_every_row_is_aligned_to(d, unit):
    assert (
        choose(problem_of(d, 64, ("float16",) * 3, kernel="sm80"), assumed(90)).variant.unit == unit
    )


def test_rows_that_end_inside_a_unit_are_copied_in_smaller_ones():
    wide = planned((1, 100, 64), np.dtype(np.float16))
    sliced = dataclasses.replace(wide, shape=(1, 100, 62))
    options = check_options(kernel="sm80")
    variants = [
        choose(make_problem(x, x, wide, options), assumed(90)).variant for x in (wide, sliced)
    ]
    assert [variant.unit for variant in variants] == [16, 4]


@pytest.mark.parametrize("widest", SM80_TILES)
def test_smaller_units_and_newer_gpus_take_the_same_tiles_of_keys(widest):
    for d, arch in itertools.product((widest, widest - 2, widest - 1), (80, 90, 100, 120)):
        problem = problem_of(d, d, ("float16",) * 3, kernel="sm80")
        tile = choose(problem, assumed(arch)).variant.tile
        rows = min(SM80_TILES[widest].block_m, 64 if arch >= 100 else 128)
        assert tile == dataclasses.replace(SM80_TILES[widest], block_m=rows)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("d", [0, 1, 32, 33, 64, 65, 128, 129, 256])
def test_float32_is_multiplied_on_tensor_cores_where_they_are_faster(arch, d):
    for p, precision in itertools.product((1, 40, 100, 200), (None, "highest", "tf32")):
        problem = problem_of(d, p, precision=precision)
        variant = choose(problem, assumed(arch)).variant
        groups = arch == 90 and max(d, p) <= 128
        assert variant.tile.groups == groups
        assert not variant.tile.matrix
        assert variant.tf32 == (groups and precision == "tf32")
        by_groups = THREE_BFLOAT16 if precision == "tf32" else SIX_BFLOAT16
        assert variant.products == (by_groups if groups else FMA)


def test_float32_is_left_to_fma_among_other_types_and_beside_too_many_keys():
    assert choose(problem_of(), assumed(90)).variant.tile.groups
    for dtypes in (("float16", "float32", "float32"), ("float32", "float32", "bfloat16")):
        variant = choose(problem_of(dtypes=dtypes, precision="tf32"), assumed(90)).variant
        assert variant.products == FMA
        assert not variant.tf32
    x, many = (planned((n, 64), np.dtype(np.float32)) for n in (3, MOST_KEYS + 1))
    variant = choose(make_problem(x, many, many, check_options()), assumed(90)).variant
    assert variant.products == FMA


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_tf32_permits_nothing_in_other_dtypes(dtype):
    for arch in (80, 90):
        plain, tf32 = (
            choose(problem_of(dtypes=(dtype,) * 3, precision=x), assumed(arch)).variant
            for x in (None, "tf32")
        )
        assert plain == tf32
        assert plain.products == FMA


# Options, and what a variant has of them; everything else is as of a plain call.
OPTIONS = {
    "causal": ({"causal": True}, {"right": True}),
    "window": ({"window": (3, 2)}, {"left": True, "right": True}),
    "left": ({"window": (3, None)}, {"left": True}),
    "no bound": ({"window": (None, None)}, {}),
    "offset": ({"offset": 3}, {}),
    "softcap": ({"softcap": 30.0}, {"softcap": True}),
    "mask": ({"mask": planned((33, 77), np.dtype(bool))}, {"mask": "pairs"}),
    "mask of rows": ({"mask": planned((33, 1), np.dtype(bool))}, {"mask": "pairs"}),
    "mask of keys": ({"mask": planned((2, 1, 1, 77), np.dtype(bool))}, {"mask": "keys"}),
    "mask of heads": ({"mask": planned((4, 1, 1), np.dtype(bool))}, {"mask": "keys"}),
    "bias": (
        {"bias": planned((2, 4, 33, 77), np.dtype(np.uint8))},
        {"bias": "uint8", "bias_along": "pairs"},
    ),
    "bias of keys": (
        {"bias": planned((77,), to_dtype("bfloat16"))},
        {"bias": "bfloat16", "bias_along": "keys"},
    ),
    "slopes": ({"alibi_slopes": planned((4,), np.dtype(np.float64))}, {"alibi": "float64"}),
    "sinks": ({"sinks": planned((2, 1), np.dtype(np.float16))}, {"sinks": "float16"}),
}


@pytest.mark.parametrize("kernel", [*FAMILIES, "sm80"])
@pytest.mark.parametrize("kind", OPTIONS)
def test_a_variant_has_the_kinds_of_options_and_not_their_values(kernel, kind):
    options, want = OPTIONS[kind]
    plain, variant = (
        choose(problem_of(dtypes=("float16",) * 3, kernel=kernel, **given), assumed(90)).variant
        for given in ({}, options)
    )
    assert variant == dataclasses.replace(plain, **want, tile=variant.tile)
    if not (variant.mask or variant.bias or variant.softcap or variant.alibi):
        assert variant.tile.block_n == plain.tile.block_n


@pytest.mark.parametrize("rows", [1, 33])
def test_rows_that_share_their_values_share_a_variant(rows):
    """One row of queries, and a mask broadcast by the caller, have the kernel of a key mask."""
    q, k = (
        planned((2, 4, rows, 64), np.dtype(np.float16)),
        planned((2, 4, 77, 64), np.dtype(np.float16)),
    )
    mask = planned((rows, 77), np.dtype(bool))
    if rows > 1:
        mask = dataclasses.replace(mask, strides=(0, 1))
    problem = make_problem(q, k, k, check_options(mask=mask))
    assert choose(problem, assumed(90)).variant.mask == "keys"


@pytest.mark.parametrize(
    ("options", "from_lengths"),
    [
        ({}, False),
        ({"softcap": 1.0}, False),
        ({"causal": True}, True),
        ({"window": (None, 3)}, True),
        ({"window": (3, None)}, True),
        ({"alibi_slopes": planned((), np.dtype(np.float32))}, True),
        ({"window": (3, 3), "offset": 1}, False),
    ],
)
def test_the_offset_comes_from_the_lengths_where_it_matters(options, from_lengths):
    lengths = planned((2,), np.dtype(np.int32))
    problem = problem_of(k_lengths=lengths, **options)
    assert choose(problem, assumed(90)).variant.offset_from_lengths == from_lengths
    without = problem_of(**options)
    assert not choose(without, assumed(90)).variant.offset_from_lengths


SCORED = ("softcap", "slopes", "mask", "mask of keys", "bias", "bias of keys")
MASK_AND_BIAS = OPTIONS["mask"][0] | {"bias": planned((33, 77), np.dtype(np.float64))}


@pytest.mark.parametrize("kind", SCORED)
@pytest.mark.parametrize("widest", SM80_TILES)
def test_sm80_keeps_its_rows_where_scores_are_changed_one_by_one(widest, kind):
    problem = problem_of(widest, dtypes=("float16",) * 3, kernel="sm80", **OPTIONS[kind][0])
    tile = choose(problem, assumed(90)).variant.tile
    plain = SM80_TILES[widest]
    assert tile == dataclasses.replace(plain, block_n=tile.block_n)
    if kind in ("softcap", "slopes"):
        assert tile == plain


@pytest.mark.parametrize("arch", [80, 86, 90])
@pytest.mark.parametrize("widest", SM80_TILES)
@pytest.mark.parametrize(
    "options",
    [OPTIONS["mask"][0], OPTIONS["bias"][0], MASK_AND_BIAS],
    ids=["mask", "bias", "mask and float64 bias"],
)
def test_sm80_takes_as_many_keys_as_leave_room_for_two_blocks(arch, widest, options):
    """Or, where not even the fewest keys leave it, as fit at all."""
    problem = problem_of(widest, dtypes=("float16",) * 3, kernel="sm80", **options)
    device = assumed(arch)
    variant = choose(problem, device).variant
    whole = device.shared_memory + RESERVED_SHARED_MEMORY

    def blocks(keys):
        tile = dataclasses.replace(variant.tile, block_n=keys)
        needed = dataclasses.replace(variant, tile=tile).shared_memory + RESERVED_SHARED_MEMORY
        return whole // needed

    most = SM80_TILES[widest].block_n
    held = {keys: min(blocks(keys), 2) for keys in (most, most // 2, most // 4) if keys >= WARP}
    taken = variant.tile.block_n
    assert held[taken] == max(held.values()) >= 1
    assert all(held[keys] < held[taken] for keys in held if keys > taken)


@pytest.mark.parametrize(
    ("arch", "widest", "kind", "keys"),
    [
        (90, 64, "mask", 128),
        (90, 128, "mask", 64),
        (80, 64, "mask", 128),
        (86, 64, "mask", 64),
        (86, 64, "mask of keys", 64),
        (86, 128, "mask", 64),
    ],
)
def test_the_keys_of_a_tile_beside_a_mask(arch, widest, kind, keys):
    problem = problem_of(widest, dtypes=("float16",) * 3, kernel="sm80", **OPTIONS[kind][0])
    assert choose(problem, assumed(arch)).variant.tile.block_n == keys


@pytest.mark.parametrize("bias", [None, "float16", "float32", "float64", "uint8"])
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("arch", [80, 86, 90, 100])
@pytest.mark.parametrize("widest", SM80_TILES)
def test_a_row_alone_has_the_tiles_of_keys_that_it_has_among_others(widest, arch, mask, bias):
    tiles = set()
    for rows in ((), (1,), (33,)):
        options = {"mask": planned((*rows, 77), np.dtype(bool))} if mask else {}
        if bias:
            options["bias"] = planned((*rows, 77), np.dtype(bias))
        m = 1 if rows == (1,) else 33
        arrays = (
            planned(shape, np.dtype(np.float16)) for shape in ((m, widest), *[(77, widest)] * 2)
        )
        problem = make_problem(*arrays, check_options(kernel="sm80", **options))
        tiles.add(choose(problem, assumed(arch)).variant.tile)
    assert len(tiles) == 1


def test_sm80_refuses_more_keys_than_it_counts():
    infos = (planned(s, np.dtype(np.float16)) for s in ((1, 8), (2**30 + 1, 8), (2**30 + 1, 8)))
    problem = make_problem(*infos, check_options(kernel="sm80"))
    with pytest.raises(ValueError, match="n is 1073741825, above 2\\*\\*30"):
        choose(problem, assumed(90))


def test_the_largest_tiles_must_opt_in_to_shared_memory():
    sizes = [variant.shared_memory for _, variant in every_variant(75)]
    assert max(sizes) > DEFAULT_SHARED_MEMORY
    assert 0 < min(size for size in sizes if size) <= DEFAULT_SHARED_MEMORY


def test_every_tile_of_the_table_is_reachable():
    used = {
        (v.accumulate, max(v.head_dim, v.head_dim_v))
        for _, v in every_variant(90)
        if v.family == "simt"
    }
    assert used == set(SIMT_TILES)


@pytest.mark.parametrize("size", EDGES)
def test_head_dims_round_up_to_a_bucket(size):
    variant = choose(problem_of(size, 256), assumed(90)).variant
    assert variant.head_dim == min(b for b in HEAD_DIM_BUCKETS["simt"] if b >= size)
    assert variant.head_dim_v == 256
    assert choose(problem_of(256, size), assumed(90)).variant.head_dim_v == variant.head_dim


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("d", "p", "fits"),
    [
        *((0, 0, True), (64, 128, True), (256, 256, True)),
        *((257, 64, False), (64, 257, False), (1000, 1000, False), (1 << 20, 1, False)),
    ],
)
def test_choice(dtype, arch, d, p, fits):
    choice = choose(problem_of(d, p, (dtype,) * 3), assumed(arch))
    tensor_cores = fits and arch >= 80 and dtype in ("float16", "bfloat16")
    family = "sm80" if tensor_cores else "simt" if fits else "naive"
    assert choice.variant.family == family
    *refused, taken = choice.reasons
    assert taken == f"{family}: the fastest family that can"
    before = ("sm90", "sm80", "simt", "naive")[: len(refused)]
    for name, reason in zip(before, refused, strict=True):
        assert reason.startswith(f"{name}: no, ")
    if family == "naive":
        too_wide = [f"{name} is {x}, above 256" for name, x in (("d", d), ("p", p)) if x > 256]
        assert choice.reasons[2] == f"simt: no, {'; '.join(too_wide)}"


@pytest.mark.parametrize("kernel", FAMILIES)
def test_a_forced_kernel_is_taken(kernel):
    choice = choose(problem_of(kernel=kernel), assumed(90))
    assert choice.variant.family == kernel
    assert choice.reasons == (f"{kernel}: asked for by kernel='{kernel}'",)


@pytest.mark.parametrize(
    ("kernel", "d", "p", "words"),
    [
        ("simt", 300, 64, ("d is 300, above 256", "Able are 'naive';")),
        ("simt", 64, 257, ("p is 257, above 256", "kernel=None takes the fastest")),
        ("simt", 512, 300, ("d is 512", "p is 300")),
        ("sm80", 64, 300, ("float16 and bfloat16, not float32", "p is 300", "Able are 'naive';")),
        ("sm90", 64, 64, ("float16 and bfloat16, not float32", "Able are 'simt', 'naive';")),
        ("sm90", 999, 64, ("Able are 'naive';",)),
    ],
)
def test_a_forced_kernel_that_cannot_says_why_and_who_can(kernel, d, p, words):
    with pytest.raises(ValueError, match=f"kernel='{kernel}' can't compute this call") as caught:
        choose(problem_of(d, p, kernel=kernel), assumed(90))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("dtypes", "result"),
    [
        (("float16",) * 3, "float16"),
        (("bfloat16", "bfloat16", "float32"), "float32"),
        (("float16", "float32", "float64"), "float64"),
    ],
)
def test_each_array_keeps_its_type_and_the_result_is_promoted(dtypes, result):
    variant = choose(problem_of(dtypes=dtypes), assumed(90)).variant
    assert (variant.q, variant.k, variant.v, variant.o) == (*dtypes, result)
    assert variant.accumulate == ("float64" if result == "float64" else "float32")


def test_a_variant_says_itself_in_one_line():
    lengths = planned((2,), np.dtype(np.int64))
    variant = choose(problem_of(40, 100, causal=True, k_lengths=lengths), assumed(75)).variant
    assert str(variant) == "forward_simt float32 d<=64 p<=128 sm_75 (right bound, k_lengths int64)"
    every = {name: planned((), np.dtype(np.float32)) for name in ("bias", "alibi_slopes", "sinks")}
    every |= {"mask": planned((33, 77), np.dtype(bool)), "softcap": 1.0, "window": (1, None)}
    assert str(choose(problem_of(40, **every), assumed(75)).variant) == (
        "forward_simt float32 d<=64 p<=64 sm_75 (left bound, mask of pairs, float32 bias of keys, "
        "softcap, float32 ALiBi slopes, float32 sinks)"
    )
    mixed = choose(
        problem_of(300, dtypes=("float16", "float32", "float32"), q_lengths=lengths), assumed(90)
    ).variant
    assert str(mixed) == "forward_naive float16/float32/float32 sm_90 (q_lengths int64)"


def test_equal_kinds_give_the_same_object():
    first, second = (choose(problem_of(d), assumed(90)).variant for d in (33, 64))
    assert first is second
    assert dataclasses.replace(first) == first


@pytest.mark.parametrize("arch", [0, 60, 91, 9.0, "90", None])
def test_unknown_architectures(arch):
    with pytest.raises(ValueError, match=r"arch is .*; known are 75, 80"):
        assumed(arch)


def test_a_gpu_with_little_shared_memory_falls_back_to_naive():
    small = Device(61, "an old GPU", 49_152, 20)
    choice = choose(problem_of(d=64), small)
    assert choice.variant.family == "naive"
    assert any("49,152 bytes of shared memory" in reason for reason in choice.reasons)


SM90 = {"dtypes": ("float16",) * 3, "kernel": "sm90"}


def sm90_of(m, **options):
    x = planned((2, 4, m, 64), np.dtype(np.float16))
    return make_problem(x, x, x, check_options(kernel="sm90", **options))


@pytest.mark.parametrize(
    ("m", "options", "blocks"),
    [
        (100, {}, 132),
        (8192, {}, 132),
        (4096, {"causal": True}, 132),
        (4097, {"causal": True}, None),
        (8192, {"window": (100, None)}, None),
        (8192, {"k_lengths": planned((2,), np.dtype(np.int32))}, None),
    ],
)
def test_blocks_of_sm90_go_round_unless_tiles_of_many_rows_differ(m, options, blocks):
    problem, device = sm90_of(m, **options), assumed(90)
    variant = choose(problem, device).variant
    assert variant.family == "sm90"
    assert resident_blocks(problem, variant, device) == blocks
    assert blocks in (None, device.sm_count)


def test_blocks_of_other_families_have_a_tile_each():
    device = assumed(90)
    for kernel in ("sm80", "simt", "naive"):
        problem = problem_of(dtypes=("float16",) * 3, kernel=kernel)
        assert resident_blocks(problem, choose(problem, device).variant, device) is None


@pytest.mark.parametrize(
    ("options", "device", "words"),
    [
        ({"d": 129}, assumed(90), "d is 129, above 128"),
        ({"p": 200}, assumed(90), "p is 200, above 128"),
        ({"mask": planned((33, 77), np.dtype(bool))}, assumed(90), "takes no mask"),
        ({"bias": planned((33, 77), np.dtype(np.float16))}, assumed(90), "takes no bias"),
        ({"scale": 2.0**120}, assumed(90), "scale is"),
        ({}, assumed(80), r"compute capability 9\.0, a GPU of .* 8\.0 has another one"),
        ({}, dataclasses.replace(assumed(90), warpgroups=False), r"sm_90a: NVRTC 12\.9 or newer"),
    ],
)
def test_what_sm90_cannot_it_says(options, device, words):
    with pytest.raises(ValueError, match=words):
        choose(problem_of(**(SM90 | options)), device)


@pytest.mark.parametrize(("p", "rows"), [(64, 192), (128, 128)])
def test_sm90_takes_more_rows_where_registers_are_left(p, rows):
    for options, expected in (({}, rows), ({"causal": True}, rows), ({"softcap": 3.0}, 128)):
        variant = choose(problem_of(64, p, **SM90, **options), assumed(90)).variant
        assert variant.tile.block_m == expected
