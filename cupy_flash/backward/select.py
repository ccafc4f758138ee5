"""Which kernels compute gradients: the family of the forward call, and a tile for each pass."""

from __future__ import annotations

from dataclasses import replace

from cupy_flash.backward.problem import BackwardProblem
from cupy_flash.backward.tiles import (
    GROUP_HEAD_DIMS,
    GROUP_TILES,
    GROUP_WIDER,
    MATRIX_TILES,
    NAIVE_TILE,
    SIMT_TILES,
    SM80_JOINT,
    SM80_SCORE_TILES,
    SM80_TILES,
    SM80_WIDER,
    SPLIT_TILES,
)
from cupy_flash.backward.variant import BackwardVariant
from cupy_flash.device import Device
from cupy_flash.select import RESERVED_SHARED_MEMORY, choose
from cupy_flash.variant import Tile, Variant


def choose_forward(problem: BackwardProblem, device: Device) -> Variant:
    """Return what the passes have in common: family, element types, head dims and options."""
    call = problem.forward
    chosen = choose(call, device).variant
    if chosen.family == "sm90":
        # On Hopper the gradients of sm80 multiply by warpgroups, too.
        call = replace(call, kernel="sm80")
        chosen = choose(call, device).variant
    while against := _obstacles(chosen, problem):
        if problem.forward.kernel is not None:
            raise ValueError(
                f"attention_backward: kernel={problem.forward.kernel!r} can't compute these "
                f"gradients: {against}; kernel=None takes the fastest that can"
            )
        chosen = choose(replace(call, kernel="simt"), device).variant
    chosen = replace(chosen, sinks=None)
    if chosen.family != "sm80":
        return chosen
    d, p = (SM80_WIDER.get(x, x) for x in (chosen.head_dim, chosen.head_dim_v))
    grouped = GROUP_WIDER.get(d, d), GROUP_WIDER.get(p, p)
    if device.warpgroups and {*grouped} <= {*GROUP_HEAD_DIMS}:
        d, p = grouped
    return replace(chosen, head_dim=d, head_dim_v=p, unit=min(chosen.unit, problem.do.unit))


def _obstacles(variant: Variant, problem: BackwardProblem) -> str | None:
    """Say why a family that computes the forward call doesn't compute the gradients."""
    if variant.family == "sm80":
        if problem.forward.scale == 0 and "scale" in problem.wrt:
            return "scale is 0, and its gradient is asked for"
        if problem.forward.m > 2**30:
            return f"m is {problem.forward.m}, above 2**30"
    return None


def _widest(variant: Variant) -> int:
    return max(variant.head_dim, variant.head_dim_v)


def keys_in_one_pass(forward: Variant, device: Device, *, sums: bool = False) -> bool:
    """Whether one kernel computes dk and dv: registers and shared memory may not hold both.

    `sums`: and the sums of a bias of keys.
    """
    widest = _widest(forward)
    if forward.family == "naive":
        return True
    both = BackwardVariant(forward, keys=True, first=True, second=True, bias_sums=sums)
    if forward.family == "simt":
        if forward.tile.groups:
            # With options both spilled 128 bytes and more.
            return ("kv", widest) in SPLIT_TILES and not (sums or forward.scores_one_by_one)
        in_one = (2, forward.accumulate, widest) in SIMT_TILES
        return in_one or _matrix_fitting(both, device) is not None
    return widest in SM80_JOINT and _fitting(both, _sm80_tiles(both), device) is not None


def with_tile(variant: BackwardVariant, device: Device) -> BackwardVariant:
    """Return the variant with the tile of its pass."""
    family, widest = variant.family, _widest(variant.forward)
    if family == "naive":
        return _tiled(variant, NAIVE_TILE)
    if family == "simt":
        gradients = 2 if variant.first and variant.second else 1
        found = _split(variant) or _matrix_fitting(variant, device)
        return found or _tiled(variant, SIMT_TILES[gradients, variant.accumulate, widest])
    fitting = _fitting(variant, _group_tiles(variant, device) + _sm80_tiles(variant), device)
    assert fitting is not None, "the last tile fits on every GPU"
    return fitting


def _split(variant: BackwardVariant) -> BackwardVariant | None:
    """Return the variant with a tile of float32 by warpgroups, if there is one.

    A pass without a gradient in registers wouldn't see that a sum isn't finite.
    """
    if not variant.tile.groups or not (variant.first or variant.second):
        return None
    return _tiled(variant, SPLIT_TILES[_gradients(variant), _widest(variant.forward)])


def _gradients(variant: BackwardVariant) -> str:
    """Name the gradients that a pass has in registers."""
    return "k" * variant.first + "v" * variant.second if variant.keys else "q" * variant.first


def _matrix_fitting(variant: BackwardVariant, device: Device) -> BackwardVariant | None:
    """Return the variant with the first tile of the float64 tensor cores that fits, if any."""
    if not variant.tile.matrix or variant.accumulate != "float64":
        return None
    gradients = 2 if variant.first and variant.second else 1
    sums = variant.bias_sums or variant.slope_sums or variant.scale_sums
    for tile in MATRIX_TILES.get((gradients, _widest(variant.forward)), ()):
        found = _tiled(variant, tile)
        if found.shared_memory <= device.shared_memory and not (sums and tile.threads_n > 4):
            return found
    return None


def _group_tiles(variant: BackwardVariant, device: Device) -> tuple[Tile, ...]:
    """Return the tiles of warpgroups, which sm_90a alone has."""
    widths = variant.forward.head_dim, variant.forward.head_dim_v
    if not device.warpgroups or not {*widths} <= {*GROUP_HEAD_DIMS}:
        return ()
    if variant.first or variant.second:
        what = _gradients(variant)
    else:
        what = "pairs" if variant.pairs else "sums"
    arrays = variant.forward.mask or variant.forward.bias
    found = GROUP_TILES.get((what, max(widths), "arrays")) if arrays else None
    return found or GROUP_TILES[what, max(widths)]


def _sm80_tiles(variant: BackwardVariant) -> tuple[Tile, ...]:
    """Return the tiles for what a pass computes; warps that split columns have 64 at least."""
    widths = variant.forward.head_dim, variant.forward.head_dim_v
    summed = [
        x for x, wanted in zip(widths, (variant.first, variant.second), strict=True) if wanted
    ]
    if not summed:
        return SM80_SCORE_TILES[max(widths)]
    tiles = SM80_TILES[_gradients(variant), max(summed)]
    return tuple(t for t in tiles if t.split == 1 or all(x % (64 * t.split) == 0 for x in summed))


def _tiled(variant: BackwardVariant, tile: Tile) -> BackwardVariant:
    return replace(variant, forward=replace(variant.forward, tile=tile))


def _fitting(
    variant: BackwardVariant, tiles: tuple[Tile, ...], device: Device
) -> BackwardVariant | None:
    """Return the variant with the first of the tiles that shared memory has room for, if any.

    First for as many blocks as a tile wants, then for one. Arrays count as if each differed from
    row to row, so that those of a row alone have the tiles that they have among others.
    """
    largest = replace(
        variant,
        forward=replace(
            variant.forward,
            mask=variant.forward.mask and "pairs",
            bias_along=variant.forward.bias_along and "pairs",
        ),
    )
    whole = device.shared_memory + RESERVED_SHARED_MEMORY
    for wanted in (True, False):
        for tile in tiles:
            bytes_of_one = _tiled(largest, tile).shared_memory + RESERVED_SHARED_MEMORY
            if bytes_of_one * (tile.blocks if wanted else 1) <= whole:
                return _tiled(variant, tile)
    return None
