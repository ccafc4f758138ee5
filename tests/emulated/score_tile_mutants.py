"""Defects of how the tensor-core kernel brings masks and biases to its scores, by shared memory."""

from __future__ import annotations

from mutants import BLOCK_SM80, FORWARD_SM80, FORWARD_WORK, Mutant, sm80

SCORES = "sm80_scores.cuh"
TILE = "score_tile.cuh"
STORED = "stored.cuh"
MATRIX_TILE = "matrix_tile.cuh"

# The key says what is wrong with the mutant.
SCORE_TILE_MUTANTS: dict[str, Mutant] = {
    # Which elements are copied.
    "the bias is that of another head": sm80(
        FORWARD_WORK,
        "index_of(operand, tile, tile.head)",
        "index_of(operand, tile, 0)",
        ["float16, heads"],
    ),
    "the bias is that of the next key": sm80(
        FORWARD_WORK, "key * operand.column", "(key + 1) * operand.column", ["float16, bias"]
    ),
    "the bias is that of the block's neighbour": sm80(
        FORWARD_WORK, "+ row * operand.row", "+ 0 * row", ["float16, bias"]
    ),
    "the bias is that of the next tile": sm80(
        FORWARD_SM80,
        "copy_bias<Config>(params, block, key);",
        "copy_bias<Config>(params, block, key + kBlockN);",
        ["float16, bias"],
    ),
    "the mask is a tile late": sm80(
        FORWARD_SM80,
        "copy_mask<Config>(params, block, block.work(), key + kBlockN);",
        "copy_mask<Config>(params, block, block.work(), key);",
        ["float16, mask of late keys"],
    ),
    "the mask is a tile ahead": sm80(
        FORWARD_SM80,
        "copy_mask<Config>(params, block, block.work(), key + kBlockN);",
        "copy_mask<Config>(params, block, block.work(), key + 2 * kBlockN);",
        ["float16, mask"],
    ),
    "every tile has the first one's mask": sm80(
        SCORES,
        "arrays_of<Config>(params, work, key).mask",
        "arrays_of<Config>(params, work, 0).mask",
        ["float16, mask"],
    ),
    "every tile has the first one's bias": sm80(
        SCORES,
        "arrays_of<Config>(params, work, key).bias",
        "arrays_of<Config>(params, work, 0).bias",
        ["float16, bias"],
    ),
    "the first tile of the mask doesn't come": sm80(
        FORWARD_SM80, "copy_mask<Config>(params, block, work, 0);", "", ["float16, mask"]
    ),
    "the next tile of the mask comes over this one": sm80(
        BLOCK_SM80,
        "key / Config::kBlockN % 2 * MaskTile::kBytes",
        "0 * key",
        ["float16, mask"],
    ),
    "the mask isn't looked at": sm80(
        SCORES, "hide_masked<Config, Block>(block.mask(key), r, S);", ";", ["float16, mask"]
    ),
    "rows beyond the problem's are read": sm80(
        SCORES,
        "ToTile::kRows > 1 ? work.rows : 1, keys, unit",
        "ToTile::kRows, keys, unit",
        ["float16, bias"],
    ),
    "keys beyond the problem's are read": sm80(
        SCORES,
        "const int keys = work.sees.keys - key;",
        "const int keys = 999;",
        ["float16, bias"],
    ),
    # The units that rows consist of.
    "whole pieces of a bias aren't copied": sm80(
        TILE,
        "kThreads, 16>::run(tile, array, 0, rows, keys)",
        "kThreads, 16>::run(tile, array, 0, 0, keys)",
        ["float16, bias"],
    ),
    "whole pieces of a mask aren't copied": sm80(
        TILE,
        "kThreads, 16>::run(tile, array, 0, rows, keys)",
        "kThreads, 16>::run(tile, array, 0, 0, keys)",
        ["float16, mask"],
    ),
    "units of 4 bytes aren't copied": sm80(
        TILE,
        "kThreads, 4>::run(tile, array, 0, rows, keys)",
        "kThreads, 4>::run(tile, array, 0, 0, keys)",
        ["float16, float32 bias of odd pitch"],
    ),
    "elements of other rows aren't copied": sm80(
        TILE,
        "kThreads, 1, kBatch>::run(tile, array, 0, rows, keys)",
        "kThreads, 1, kBatch>::run(tile, array, 0, 0, keys)",
        ["float16, bias of odd pitch"],
    ),
    "strided rows are copied in pieces": sm80(
        FORWARD_WORK,
        "if (operand.column == 1 && bytes % 16 == 0) return 16;",
        "if (bytes % 16 == 0) return 16;",
        ["float16, sliced bias"],
    ),
    "strided rows are copied in units": sm80(
        FORWARD_WORK,
        "const bool dense = operand.column == 1 || kSize == 4;",
        "const bool dense = true;",
        ["float16, sliced bias"],
    ),
    "rows at odd distances are copied in pieces": sm80(
        FORWARD_WORK, "address | operand.row * kSize", "address", ["float16, bias of odd pitch"]
    ),
    "rows of a mask at odd distances are copied in pieces": sm80(
        FORWARD_WORK, "address | operand.row * kSize", "address", ["float16, mask of odd pitch"]
    ),
    "the last piece is copied as a whole": sm80(
        FORWARD_WORK, " | keys * kSize;", ";", ["float16, ragged bias"]
    ),
    "rows at an odd address are copied in pieces": sm80(
        FORWARD_WORK, "address | operand.row", "operand.row", ["float16, bias at an odd address"]
    ),
    "rows of a mask at an odd address are copied in pieces": sm80(
        FORWARD_WORK, "address | operand.row", "operand.row", ["float16, mask at an odd address"]
    ),
    "every element counts two bytes": sm80(
        FORWARD_WORK,
        "constexpr int kSize = sizeof(T);",
        "constexpr int kSize = 2;",
        ["float16, mask of ragged rows"],
    ),
    "numbers that change on their way are copied as they are": sm80(
        TILE, "Stored<T>::kSame && unit == 16", "unit == 16", ["float16, int16 bias"]
    ),
    "columns of units are taken for dense": sm80(
        MATRIX_TILE,
        "(kUnitElements > 1 ? kUnitElements * u : u * stride)",
        "kUnitElements * u",
        ["float16, transposed float32 bias"],
    ),
    "upright pieces are those of another place": sm80(
        MATRIX_TILE,
        "upright ? thread / kDown : thread % kAcross",
        "thread % kAcross",
        ["float16, transposed float16 bias"],
    ),
    "a thread scales other pieces of q than it copied": sm80(
        MATRIX_TILE,
        "const int row = place.row + i",
        "const int row = static_cast<int>(threadIdx.x) / kAcross + i",
        ["float16, transposed q"],
    ),
    # What shared memory holds of them.
    "a float64 is stored as an integer": sm80(
        STORED,
        "return __float_as_uint(to_float(value));",
        "return static_cast<Type>(static_cast<int>(value));",
        ["float16, float64 bias"],
    ),
    "elements are stored beside their places": sm80(
        MATRIX_TILE,
        "bits << 32 / kWordElements * e",
        "bits << 16 * e",
        ["float16, mask of odd pitch"],
    ),
    "pieces are read where they would be without turns": sm80(
        TILE,
        "address = tile.at(row, byte / 16) + byte % 16;",
        "address = tile.base + row * Tile::kPitch + byte;",
        ["float16, bias"],
    ),
    "rows that a thread reads are turned unlike": sm80(
        TILE, "row / kLineRows % kPlaces", "row / (8 * kLineRows) % kPlaces", ["float16, bias"]
    ),
    "all rows of a thread have the first one's bias": sm80(
        TILE, "kAlongRows ? Scores::row_of(0, r) : 0", "0", ["float16, bias"]
    ),
    "warps have the first one's bias": sm80(
        TILE,
        "kAlongRows ? place.row + Scores::row_of(place.lane, 0)",
        "kAlongRows ? Scores::row_of(place.lane, 0)",
        ["float16, bias"],
    ),
    "a bias of keys is taken for one of rows": sm80(
        TILE,
        "kAlongRows = Tile::kRows > 1;\n  unsigned address;",
        "kAlongRows = true;\n  unsigned address;",
        ["float16, bias of keys"],
    ),
    "every lane reads the next one's pair": sm80(
        TILE,
        "Scores::column_of(place.lane, 0) * kBytes",
        "Scores::column_of(place.lane + 1, 0) * kBytes",
        ["float16, bias"],
    ),
    "pairs are read in the order of pieces": sm80(
        TILE,
        "use(2 * pair, reader(r, pair))",
        "use(2 * pair, reader(r, pair ^ 1))",
        ["float16, bias"],
    ),
    "the second line of a row is the first one": sm80(
        TILE, "+ byte / 128 * 128", "", ["float16, bias"]
    ),
    "neighbours of float32 are swapped": sm80(
        STORED, "words.word[i])", "words.word[1 - i])", ["float16, float64 bias"]
    ),
    "neighbours of float16 are swapped": sm80(
        STORED,
        "T{static_cast<unsigned short>(bits >> 16 * i)}",
        "T{static_cast<unsigned short>(bits >> 16 * (1 - i))}",
        ["float16, bias"],
    ),
    "neighbours of bfloat16 are taken for float16": sm80(
        STORED,
        "StoredPairOf16Bits<BFloat16> {}",
        "StoredPairOf16Bits<Float16> {}",
        ["float16, bfloat16 bias"],
    ),
    "neighbours of a mask are swapped": sm80(
        STORED, "return (bits >> 8 * i &", "return (bits >> 8 * (1 - i) &", ["float16, mask"]
    ),
    "neighbours of uint8 are swapped": sm80(
        STORED,
        "static_cast<float>(bits >> 8 * i &",
        "static_cast<float>(bits >> 8 * (1 - i) &",
        ["float16, uint8 bias"],
    ),
    # Tiles of which the mask shows a warp nothing.
    "tiles are skipped for their first rows": sm80(
        SCORES,
        "piece < kRows * Tile::kPieces; piece += 32",
        "piece < 32; piece += 32",
        ["float16, sparse mask"],
    ),
    "tiles are skipped for the first piece of their rows": sm80(
        SCORES,
        "(piece + block.lane()) * 16",
        "(piece + block.lane()) / Tile::kPieces * Tile::kPitch",
        ["float16, sparse mask"],
    ),
    "tiles are skipped for the first words of their pieces": sm80(
        SCORES, "w < 4; ++w) any |=", "w < 1; ++w) any |=", ["float16, sparse mask"]
    ),
    "tiles are skipped for the first warp's rows": sm80(
        SCORES,
        "Tile::kRows > 1 ? block.warp_row() * Tile::kPitch : 0",
        "0",
        ["float16, sparse mask"],
    ),
    "a lane skips a tile for what it has read itself": sm80(
        SCORES, "return __any_sync(0xffffffffu, any != 0);", "return any != 0;", ["float16, mask"]
    ),
}
