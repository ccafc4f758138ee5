// ldmatrix and mma: the lanes' registers as matrices (PTX ISA, "ldmatrix" and "Matrix Fragments for
// mma.m16n8k16").
#pragma once

#include "tensor_core.hpp"
#include "thread.hpp"

namespace emu {

void load_matrix(const char* name, Site site, unsigned address, unsigned (&fragment)[4],
                 bool transposed);

// For Half and Bfloat.
template <class Format>
void multiply_accumulate(const char* name, Site site, float (&c)[4], const unsigned (&a)[4],
                         unsigned b0, unsigned b1);

// Each element is a chain of fused multiply-adds along k, as an H200 was seen to round it.
void multiply_accumulate_double(Site site, double (&c)[4], const double (&a)[8],
                                const double (&b)[4]);

struct TensorFloatOperand {
  unsigned a[4];
  unsigned b[2];
};

inline void multiply_accumulate_tf32(Site site, float (&c)[4], const TensorFloatOperand& own) {
  constexpr int kTerms = 8;
  const Deposits<TensorFloatOperand> lanes = exchange("mma of TF32", site, own);
  const unsigned row = lane_index() / 4;
  const unsigned pair = lane_index() % 4 * 2;
  Factors a[2];  // the rows
  Factors b[2];  // the columns
  for (Factors& row : a) row.finite = true;
  for (Factors& column : b) column.finite = true;
  for (unsigned k = 0; k < kTerms; ++k) {
    for (unsigned i = 0; i < 2; ++i) {
      a[i].set<TensorFloat>(k, lanes[row * 4 + k % 4].a[k / 4 * 2 + i] >> TensorFloat::kUnread);
      b[i].set<TensorFloat>(k, lanes[(pair + i) * 4 + k % 4].b[k / 4] >> TensorFloat::kUnread);
    }
  }
  for (unsigned i = 0; i < 4; ++i) {
    unsigned bits;
    memcpy(&bits, &c[i], sizeof bits);
    bits = accumulate(bits, a[i / 2], b[i % 2], kTerms);
    memcpy(&c[i], &bits, sizeof bits);
  }
}

// cvt.rna.tf32: to nearest, ties away from zero; the canonical NaN of NaNs.
inline unsigned rounded_tf32(unsigned bits) {
  constexpr unsigned kUnit = 1u << TensorFloat::kUnread;
  if ((bits & ~kSign) > kInfinity) return kNaN;
  return (bits + kUnit / 2) & ~(kUnit - 1);
}

}  // namespace emu
