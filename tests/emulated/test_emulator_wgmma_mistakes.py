"""wgmma in the emulator: when it reads and writes, and which mistakes it notices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from emulation import LANDINGS, EmulationError
from tiny_kernels import kernel_of, launch, primitives

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]

Array = np.ndarray[Any, Any]

GROUP = 128
LATE, EARLY = LANDINGS["late"], LANDINGS["early"]
every_landing = pytest.mark.parametrize("landing", LANDINGS.values(), ids=LANDINGS.keys())

# One product of 64 x 64 x 16, whose operands the threads store.
SMALL = """
const unsigned shared = shared_address(sm);
const MatrixDescriptor a = MatrixDescriptor::of(shared, 16), b = a.further(8192);
float d[8][4] = {};
const Words4 words = {{1, 2, 3, 4}};
for (int piece = i; piece < 1024; piece += 128) store_shared(shared + 16 * piece, words);
show_products();
__syncthreads();
begin_products();
multiply_group<Float16>(d, a, b, false);
commit_products();
wait_products<0>();
settle(d);
store_global(p.y + i, __float_as_uint(d[0][0]));
"""
WAIT = "wait_products<0>();"
STORE = "store_global(p.y + i, __float_as_uint(d[0][0]));"
PRODUCT = "multiply_group<Float16>(d, a, b, false);"


def small(*changes: tuple[str, str], threads: int = GROUP, **options: int) -> Array:
    body = SMALL
    for old, new in changes:
        assert body.count(old) == 1, old
        body = body.replace(old, new)
    kernel = kernel_of(body, np.uint32, primitives())
    memory, y = np.zeros(8, np.uint32), np.zeros(1024, np.uint32)
    x = memory[-memory.ctypes.data % 16 // 4 :][:4]
    x[:] = 1, 2, 3, 4
    return launch(kernel, x, y, threads=threads, smem=16384, **options).view(np.float32)[:threads]


@every_landing
@pytest.mark.parametrize("threads", [128, 256])
def test_without_a_mistake_nothing_is_noticed(threads: int, landing: int) -> None:
    got = small(threads=threads, landing=landing)
    assert (got > 0).all()
    assert np.isfinite(got).all()


MISTAKES = {
    "no fence": (
        [("begin_products();", "")],
        r"thread \d+: wgmma \(body\.cuh:9\): no wgmma\.fence came before",
    ),
    "no fence after a wait": (
        [(STORE, f"{PRODUCT} commit_products(); wait_products<0>();")],
        r"wgmma \(body\.cuh:13\): no wgmma\.fence came before",
    ),
    "no fence before other sums after a wait for some": (
        [
            (
                WAIT,
                "float e[8][4];\nmultiply_group<Float16>(e, a, b, false);\ncommit_products();\n"
                "wait_products<1>();\nmultiply_group<Float16>(d, a, b, true);\n"
                "commit_products();\nwait_products<0>();",
            )
        ],
        r"wgmma \(body\.cuh:15\): no wgmma\.fence came before",
    ),
    "no wait": (
        [(WAIT, "")],
        r"thread \d+: wgmma still pending at exit, without a wait",
    ),
    "a wait that leaves a group": (
        [(WAIT, "wait_products<1>();")],
        r"thread \d+: wgmma still pending at exit, without a wait",
    ),
    "no group": (
        [("commit_products();", "")],
        r"thread \d+: wgmma still pending at exit, without a wait",
    ),
    "no fence of the proxy": (
        [("show_products();\n", "")],
        r"wgmma \(body\.cuh:8\) reads byte \d+ of 16384 bytes of shared memory: its writer hasn't "
        r"passed fence\.proxy\.async since",
    ),
    "a fence of the proxy before the stores": (
        [("show_products();\n", ""), ("for (int", "show_products();\nfor (int")],
        r"its writer hasn't passed fence\.proxy\.async since",
    ),
    "a fence of the proxy by another thread": (
        [("show_products();\n", "if (i != 72) show_products();\n")],
        r"its writer hasn't passed fence\.proxy\.async since",
    ),
    "lanes with different descriptors": (
        [(PRODUCT, "multiply_group<Float16>(d, a, b.further(i % 32 == 9 ? 32 : 0), false);")],
        r"wgmma \(body\.cuh:9\), descriptor: lanes differ in it",
    ),
    "warps with different descriptors": (
        [(PRODUCT, "multiply_group<Float16>(d, a.further(i / 64 * 32), b, false);")],
        r"block 0: warps 0 and 2 of group 0 issued different wgmma, or with different descriptors",
    ),
    "pieces that aren't turned": (
        [(PRODUCT, "multiply_group<Float16>(d, a, {b.bits & ~(3ull << 62)}, false);")],
        r"wgmma \(body\.cuh:9\), descriptor: its layout isn't turned by 128 bytes",
    ),
    "pieces of A turned by 64 bytes": (
        [(PRODUCT, "multiply_group<Float16>(d, {a.bits ^ 3ull << 62}, b, false);")],
        r"wgmma \(body\.cuh:9\), descriptor: its layout isn't turned by 128 bytes",
    ),
    "a base offset": (
        [(PRODUCT, "multiply_group<Float16>(d, a, {b.bits | 1ull << 49}, false);")],
        r"wgmma \(body\.cuh:9\), descriptor: its base offset isn't 0",
    ),
    "beyond shared memory": (
        [(PRODUCT, "multiply_group<Float16>(d, a, b.further(8192), false);")],
        r"wgmma \(body\.cuh:9\) reads byte \d+ of 16384 bytes of shared memory: outside",
    ),
    "a warp that stays away": (
        [(PRODUCT, f"if (i < 96) {PRODUCT}")],
        r"block 0: the warps of group 0 issued 1 and 0 wgmma: all four take part in each",
    ),
    "two products of a warp": (
        [(PRODUCT, f"{PRODUCT}\nif (i >= 32) multiply_group<Float16>(d, a, b, true);")],
        r"block 0: the warps of group 0 issued 1 and 2 wgmma: all four take part in each",
    ),
    "two instructions": (
        [(PRODUCT, f"if (i < 96) {PRODUCT}\nelse {PRODUCT}")],
        r"block 0: warps 0 and 3 of group 0 issued different wgmma",
    ),
    "lanes that stay away": (
        [(PRODUCT, f"if (i % 32 < 8) {PRODUCT}")],
        r"lanes of warp \d diverged: lanes 0x[0f]+ff wait at wgmma \(body\.cuh:9\)",
    ),
}


@every_landing
@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_noticed(name: str, landing: int) -> None:
    changes, message = MISTAKES[name]
    with pytest.raises(EmulationError, match=message):
        small(*changes, landing=landing)
    # The next launch starts without what this one left.
    small(landing=landing)


def test_too_many_pending_products_are_noticed() -> None:
    more = PRODUCT.replace("false", "true")
    for count in (128, 129):
        changes = (PRODUCT, f"for (int k = 0; k < {count}; ++k) {more}")
        if count == 128:
            small(changes)
            continue
        with pytest.raises(EmulationError, match=r"more than 128 wgmma of one thread are pending"):
            small(changes)


def test_fewer_than_four_warps_are_noticed() -> None:
    with pytest.raises(EmulationError, match=r"block 0: group 0 has fewer than four warps"):
        small(threads=64)
    with pytest.raises(EmulationError, match=r"block 0: group 1 has fewer than four warps"):
        small(threads=224)


def test_products_that_add_to_the_same_sums_need_no_other_fence() -> None:
    more = PRODUCT.replace("false", "true")
    once, twice = small(), small((WAIT, f"{more}\ncommit_products();\nwait_products<0>();"))
    np.testing.assert_array_equal(twice, 2 * once)


# Mistakes that one of the landings shows.


def test_late_sums_are_nan_until_the_wait_for_their_group() -> None:
    early_read = (WAIT, f"{STORE.replace('p.y', 'p.y + 512')}\n{WAIT}")
    for landing in (LATE, EARLY):
        kernel = kernel_of(SMALL.replace(*early_read), np.uint32, primitives())
        y = np.zeros(1024, np.uint32)
        launch(kernel, y[:1].copy(), y, threads=GROUP, smem=16384, landing=landing)
        before, after = y.view(np.float32).reshape(2, 512)[::-1, :GROUP]
        assert (after > 0).all()
        if landing == LATE:
            assert np.isnan(before).all()
        else:
            np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(
    ("changes", "shows"),
    [
        ([(WAIT, f"__syncthreads();\nREPLACE\n{WAIT}")], (LATE,)),
        ([(WAIT, f"{WAIT}\n__syncthreads();\nREPLACE")], ()),
    ],
    ids=["before the wait", "after the wait"],
)
def test_late_an_overwrite_before_the_wait_is_seen(
    changes: list[tuple[str, str]], shows: tuple[int, ...]
) -> None:
    replace = "store_shared(shared + 16 * i, Words4{{0, 0, 0, 0}});\nshow_products();"
    changes = [(old, new.replace("REPLACE", replace)) for old, new in changes]
    want = small()
    for landing in (LATE, EARLY):
        same = np.array_equal(small(*changes, landing=landing), want)
        assert same == (landing not in shows)


COPIED = (
    "store_shared(shared + 16 * piece, words);",
    "{ (void)words; copy_async<16>(shared + 16 * piece, p.x, true); commit_async(); }",
)


@every_landing
def test_a_copy_is_seen_once_its_thread_has_waited_and_fenced(landing: int) -> None:
    waited = ("show_products();", "wait_async<0>();\nshow_products();")
    np.testing.assert_array_equal(small(COPIED, waited, landing=landing), small())


def test_late_a_copy_that_is_waited_for_after_the_fence_is_noticed() -> None:
    fenced = ("show_products();", "show_products();\nwait_async<0>();")
    with pytest.raises(EmulationError, match=r"its writer hasn't passed fence\.proxy\.async"):
        small(COPIED, fenced, landing=LATE)
