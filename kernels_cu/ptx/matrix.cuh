// Tensor-core products of 16-bit matrices and the loads of their fragments (PTX ISA, "ldmatrix" and
// "Matrix Fragments for mma.m16n8k16"; bfloat16 wants sm_80). All 32 lanes of a warp take part.
//
// Lane t holds pairs of neighbours, two to a register. With row = t / 4 and pair = t % 4 * 2:
//   8 x 8 matrix by ldmatrix: (row, pair); transposed: (pair, row), (pair + 1, row)
//   a, 16 x 16: a[0] (row, pair), a[1] (row + 8, pair), a[2] (row, pair + 8), a[3] (row + 8, pair + 8)
//   b, 16 x 8:  b0 (pair, row), (pair + 1, row); b1 (pair + 8, row), (pair + 9, row)
//   c, 16 x 8:  c[0] (row, pair), c[1] (row, pair + 1), c[2] and c[3] the same of row + 8
#pragma once

struct Float16;
struct BFloat16;

#ifdef CUPY_FLASH_EMULATE

__device__ __forceinline__ void load_matrix(unsigned address, unsigned (&fragment)[4],
                                            emu::Site site = emu::Site::here()) {
  emu::load_matrix("ldmatrix", site, address, fragment, false);
}

__device__ __forceinline__ void load_matrix_transposed(unsigned address, unsigned (&fragment)[4],
                                                       emu::Site site = emu::Site::here()) {
  emu::load_matrix("ldmatrix.trans", site, address, fragment, true);
}

template <class T>
__device__ __forceinline__ void multiply_accumulate(float (&c)[4], const unsigned (&a)[4],
                                                    unsigned b0, unsigned b1,
                                                    emu::Site site = emu::Site::here());

template <>
__device__ __forceinline__ void multiply_accumulate<Float16>(float (&c)[4], const unsigned (&a)[4],
                                                             unsigned b0, unsigned b1,
                                                             emu::Site site) {
  emu::multiply_accumulate<emu::Half>("mma of float16", site, c, a, b0, b1);
}

template <>
__device__ __forceinline__ void multiply_accumulate<BFloat16>(float (&c)[4], const unsigned (&a)[4],
                                                              unsigned b0, unsigned b1,
                                                              emu::Site site) {
  emu::multiply_accumulate<emu::Bfloat>("mma of bfloat16", site, c, a, b0, b1);
}

#else

// Loads four 8 x 8 matrices. Lane 8 i + r passes the address of row r of matrix i: 16 bytes, a multiple
// of 16. fragment[i] is the lane's pair of matrix i.
__device__ __forceinline__ void load_matrix(unsigned address, unsigned (&fragment)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(address)
               : "memory");
}

// The same, each matrix transposed.
__device__ __forceinline__ void load_matrix_transposed(unsigned address, unsigned (&fragment)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(address)
               : "memory");
}

// c += a b in float32, for elements of type T.
template <class T>
__device__ __forceinline__ void multiply_accumulate(float (&c)[4], const unsigned (&a)[4],
                                                    unsigned b0, unsigned b1);

template <>
__device__ __forceinline__ void multiply_accumulate<Float16>(float (&c)[4], const unsigned (&a)[4],
                                                             unsigned b0, unsigned b1) {
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void multiply_accumulate<BFloat16>(float (&c)[4], const unsigned (&a)[4],
                                                              unsigned b0, unsigned b1) {
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif
