// Products of TF32 matrices on the tensor cores (PTX ISA, "mma": .tf32, "Matrix Fragments for mma.m16n8k8", sm_80). All
// 32 lanes of a warp take part. With row = t / 4 and place = t % 4 lane t has
//   a, 16 x 8: a0 (row, place), a1 (row + 8, place), a2 (row, place + 4), a3 (row + 8, place + 4)
//   b, 8 x 8:  b0 (place, row), b1 (place + 4, row)
//   c, 16 x 8: c[0] (row, 2 place), c[1] (row, 2 place + 1), c[2] and c[3] the same of row + 8
// a and b are bits of float32, of which the last 13 don't count.
#pragma once

#ifdef CUPY_FLASH_EMULATE

__device__ __forceinline__ void multiply_accumulate(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                                                    unsigned b0, unsigned b1, emu::Site site = emu::Site::here()) {
  emu::multiply_accumulate_tf32(site, c, {{a0, a1, a2, a3}, {b0, b1}});
}

__device__ __forceinline__ unsigned rounded_tf32(float x) { return emu::rounded_tf32(__float_as_uint(x)); }

#else

__device__ __forceinline__ void multiply_accumulate(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                                                    unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Rounded to nearest, ties away from zero; a NaN stays one.
__device__ __forceinline__ unsigned rounded_tf32(float x) {
  unsigned bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
}

#endif
