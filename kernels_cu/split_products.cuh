// Products of split tiles by warpgroups (wgmma): of the terms of both factors those whose numbers add up to less than
// kTerms, the smallest first, for the tensor cores cut sums off. Addresses are opaque, or the descriptors of all
// products take registers through the whole kernel.
#pragma once

#include "fragments.cuh"
#include "ptx/opaque.cuh"
#include "ptx/wgmma.cuh"
#include "split_tile.cuh"
#include "types.cuh"

// X = own others^T of a group's 64 own rows, from `row` on.
template <class Own, class Others>
__device__ __forceinline__ void split_product(const Own& own, int row, const Others& others,
                                              Accumulators<1, Others::kRows>& X) {
  constexpr int kTerms = Own::kTerms;
#pragma unroll
  for (int order = kTerms - 1; order >= 0; --order) {
#pragma unroll
    for (int i = 0; i <= order; ++i) {
      // Where columns are summed over panels are reached by the address alone.
      const MatrixDescriptor a = MatrixDescriptor::of(opaque(own.term(i).base) + row * Own::Term::kPitch, 16);
      const MatrixDescriptor b = MatrixDescriptor::of(opaque(others.term(order - i).base), 16);
#pragma unroll
      for (int step = 0; step < Own::kColumns / 16; ++step) {
        const int within = step % 4 * 32;
        multiply_group<BFloat16>(X.sum[0], a.further(step / 4 * Own::Term::kPanelBytes + within),
                                 b.further(step / 4 * Others::Term::kPanelBytes + within),
                                 order < kTerms - 1 || i > 0 || step > 0);
      }
    }
  }
}

// A thread's part of P or dS as terms of left factors.
template <int kTerms, int kColumns>
struct SplitFragments {
  unsigned a[kTerms][kColumns / 16][4];

  __device__ __forceinline__ explicit SplitFragments(Accumulators<1, kColumns>& X) {
#pragma unroll
    for (int step = 0; step < kColumns / 16; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        unsigned terms[kTerms];
        const int c = 4 * step + i / 2 * 2;
        split_pair(X(i % 2, c), X(i % 2, c + 1), terms);
#pragma unroll
        for (int t = 0; t < kTerms; ++t) a[t][step][i] = terms[t];
      }
    }
  }
};

// G = X others of a panel of the others' columns.
template <int kTerms, class Others>
__device__ __forceinline__ void split_sums(const SplitFragments<kTerms, Others::kRows>& X, const Others& others, int panel,
                                           Accumulators<1, 64>& G) {
#pragma unroll
  for (int order = kTerms - 1; order >= 0; --order) {
#pragma unroll
    for (int i = 0; i <= order; ++i) {
      const unsigned base = opaque(others.term(order - i).base) + panel * Others::Term::kPanelBytes;
      const MatrixDescriptor b = MatrixDescriptor::of(base, Others::Term::kPanelBytes);
#pragma unroll
      for (int step = 0; step < Others::kRows / 16; ++step) {
        multiply_group<BFloat16, true>(G.sum[0], X.a[i][step], b.further(step * 16 * Others::Term::kPitch),
                                       order < kTerms - 1 || i > 0 || step > 0);
      }
    }
  }
}

// G = factor G + X others, added outside of the tensor cores, 64 columns at a time.
template <int kTerms, class Others, class Factor>
__device__ __forceinline__ void add_split_sums(const SplitFragments<kTerms, Others::kRows>& X, const Others& others,
                                               const Factor& factor, Accumulators<1, Others::kColumns>& G) {
#pragma unroll
  for (int panel = 0; panel < Others::kColumns / 64; ++panel) {
    Accumulators<1, 64> sums;
    begin_products();
    split_sums(X, others, panel, sums);
    commit_products();
    wait_products<0>();
    settle(sums.sum[0]);
#pragma unroll
    for (int r = 0; r < sums.kRows; ++r) {
#pragma unroll
      for (int c = 0; c < sums.kColumns; ++c) {
        float& sum = G(r, panel * sums.kColumns + c);
        sum = multiply_add(sum, factor(r), sums(r, c));
      }
    }
  }
}
