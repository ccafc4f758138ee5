// How the naive kernels divide a row's columns among the lanes of a warp.
#pragma once

constexpr int kWarp = 32;
// Columns that a warp sums at a time; for more of them the scores are computed once a chunk.
constexpr int kColumnsPerLane = 4;
constexpr int kColumnChunk = kWarp * kColumnsPerLane;
