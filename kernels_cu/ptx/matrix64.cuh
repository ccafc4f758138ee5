// Products of float64 matrices on the tensor cores (PTX ISA, "mma": .f64, "Matrix Fragments for mma.m16n8k16 with .f64",
// sm_90, and "mma.m8n8k4", sm_80). All 32 lanes of a warp take part. With row = t / 4 and place = t % 4 lane t has
//   a, 16 x 16: a[2 i] (row, 4 i + place), a[2 i + 1] (row + 8, 4 i + place)
//   b, 16 x 8:  b[i] (4 i + place, row)
//   c, 16 x 8:  c[0] (row, 2 place), c[1] (row, 2 place + 1), c[2] and c[3] the same of row + 8
#pragma once

#ifdef CUPY_FLASH_EMULATE

__device__ __forceinline__ void multiply_accumulate(double (&c)[4], const double (&a)[8], const double (&b)[4],
                                                    emu::Site site = emu::Site::here()) {
  emu::multiply_accumulate_double(site, c, a, b);
}

#elif __CUDA_ARCH__ >= 900

__device__ __forceinline__ void multiply_accumulate(double (&c)[4], const double (&a)[8], const double (&b)[4]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, {%12, %13, %14, %15}, {%0, %1, %2, %3};"
      : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]), "d"(b[0]),
        "d"(b[1]), "d"(b[2]), "d"(b[3]));
}

#else

__device__ __forceinline__ void multiply_accumulate(double (&c)[4], const double (&a)[8], const double (&b)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
          : "+d"(c[2 * half]), "+d"(c[2 * half + 1])
          : "d"(a[2 * i + half]), "d"(b[i]));
    }
  }
}

#endif
