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

}  // namespace emu
