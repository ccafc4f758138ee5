// Products of a warpgroup, four warps from a multiple of four on: 64 rows of D at a time, B in shared memory, A
// there or in registers (PTX ISA, "wgmma.mma_async", "Matrix Descriptor Format"; sm_90a). They run until a wait.
// A lane's part of D is that of m16n8k16's accumulators, for the 16 rows of its warp, and so is that of A.
#pragma once

struct Float16;
struct BFloat16;

// Where an operand lies: panels of 64 columns, rows of 128 bytes whose pieces of 16 are turned by the row's low
// three bits, so that eight rows are 1024 bytes.
struct MatrixDescriptor {
  unsigned long long bits;

  // From the address of a panel's row, which is a multiple of 8, on; with columns as what is summed over, so many
  // bytes before the next panel.
  static __device__ __forceinline__ MatrixDescriptor of(unsigned address, unsigned panel) {
    constexpr unsigned long long kEightRows = 1024 >> 4;
    constexpr unsigned long long kTurned = 1;  // 128 bytes
    const unsigned long long start = (address & 0x3ffffu) >> 4;
    return {start | static_cast<unsigned long long>(panel >> 4) << 16 | kEightRows << 32 | kTurned << 62};
  }

  __device__ __forceinline__ MatrixDescriptor further(int bytes) const { return {bits + (bytes >> 4)}; }
};

#ifdef CUPY_FLASH_EMULATE

constexpr bool kHasGroups = true;

template <class T>
struct EmulatedFormat;
template <>
struct EmulatedFormat<Float16> {
  using Type = emu::Half;
};
template <>
struct EmulatedFormat<BFloat16> {
  using Type = emu::Bfloat;
};

// What a thread has written to shared memory, copies that it has waited for included, becomes visible to products
// that begin after the next barrier.
__device__ __forceinline__ void show_products() { emu::fence_proxy_async(); }

__device__ __forceinline__ void begin_products(emu::Site site = emu::Site::here()) {
  emu::fence_wgmma(site);
}
__device__ __forceinline__ void commit_products() { emu::commit_wgmma(); }

// Waits until at most so many committed groups are pending.
template <int kPending>
__device__ __forceinline__ void wait_products(emu::Site site = emu::Site::here()) {
  emu::wait_wgmma(site, kPending);
}

// Sums that the compiler mustn't read before the wait above.
template <int kTiles>
__device__ __forceinline__ void settle(float (&)[kTiles][4]) {}

template <class T, bool kTransposed, int kTiles>
__device__ __forceinline__ void multiply_group(float (&d)[kTiles][4], const unsigned (&a)[4],
                                               MatrixDescriptor b, bool adds,
                                               emu::Site site = emu::Site::here()) {
  emu::multiply_group<typename EmulatedFormat<T>::Type, kTransposed>(site, d, a, b.bits, adds);
}

template <class T, int kTiles>
__device__ __forceinline__ void multiply_group(float (&d)[kTiles][4], MatrixDescriptor a,
                                               MatrixDescriptor b, bool adds,
                                               emu::Site site = emu::Site::here()) {
  emu::multiply_group<typename EmulatedFormat<T>::Type>(site, d, a.bits, b.bits, adds);
}

#else

// Whether the kernel is compiled for a target that has them.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr bool kHasGroups = true;
#else
constexpr bool kHasGroups = false;
#endif

__device__ __forceinline__ void show_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int kPending>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(kPending) : "memory");
}

template <int kTiles>
__device__ __forceinline__ void settle(float (&d)[kTiles][4]) {
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(d[j][i]) : : "memory");
  }
}

// D = A B, or D += A B if `adds`: A is 64 x 16, row by row; B 16 x 8 kTiles, and lies as its transpose, row by row,
// or if kTransposed as it is.
template <class T, bool kTransposed>
__device__ __forceinline__ void multiply_group(float (&d)[8][4], const unsigned (&a)[4], MatrixDescriptor b,
                                               bool adds);
template <class T, bool kTransposed>
__device__ __forceinline__ void multiply_group(float (&d)[16][4], const unsigned (&a)[4], MatrixDescriptor b,
                                               bool adds);
// The same of A in shared memory; B lies as its transpose.
template <class T>
__device__ __forceinline__ void multiply_group(float (&d)[8][4], MatrixDescriptor a, MatrixDescriptor b,
                                               bool adds);
template <class T>
__device__ __forceinline__ void multiply_group(float (&d)[16][4], MatrixDescriptor a, MatrixDescriptor b,
                                               bool adds);

#define CUPY_FLASH_EIGHT(d, j) \
  "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3]), "+f"(d[j + 1][0]), "+f"(d[j + 1][1]), \
      "+f"(d[j + 1][2]), "+f"(d[j + 1][3])
#define CUPY_FLASH_SUMS_8(d) \
  CUPY_FLASH_EIGHT(d, 0), CUPY_FLASH_EIGHT(d, 2), CUPY_FLASH_EIGHT(d, 4), CUPY_FLASH_EIGHT(d, 6)
#define CUPY_FLASH_SUMS_16(d) \
  CUPY_FLASH_SUMS_8(d), CUPY_FLASH_EIGHT(d, 8), CUPY_FLASH_EIGHT(d, 10), CUPY_FLASH_EIGHT(d, 12), \
      CUPY_FLASH_EIGHT(d, 14)

#define CUPY_FLASH_PLACES_8 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"

#define CUPY_FLASH_PLACES_16 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, " \
  "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, " \
  "%56, %57, %58, %59, %60, %61, %62, %63"

// Defines the products of an element type, for so many tiles of eight columns.
#define CUPY_FLASH_MULTIPLY_8(T, TYPE) \
  template <> \
  __device__ __forceinline__ void multiply_group<T, false>(float(&d)[8][4], const unsigned (&a)[4], \
                                                           MatrixDescriptor b, bool adds) { \
    asm volatile( \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n" \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " {" CUPY_FLASH_PLACES_8 \
        "}, {%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}\n" \
        : CUPY_FLASH_SUMS_8(d) \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(static_cast<int>(adds)) \
        : "memory"); \
  } \
  template <> \
  __device__ __forceinline__ void multiply_group<T, true>(float(&d)[8][4], const unsigned (&a)[4], \
                                                          MatrixDescriptor b, bool adds) { \
    asm volatile( \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n" \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " {" CUPY_FLASH_PLACES_8 \
        "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}\n" \
        : CUPY_FLASH_SUMS_8(d) \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(static_cast<int>(adds)) \
        : "memory"); \
  } \
  template <> \
  __device__ __forceinline__ void multiply_group<T>(float(&d)[8][4], MatrixDescriptor a, \
                                                    MatrixDescriptor b, bool adds) { \
    asm volatile( \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n" \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " {" CUPY_FLASH_PLACES_8 \
        "}, %32, %33, p, 1, 1, 0, 0;\n}\n" \
        : CUPY_FLASH_SUMS_8(d) \
        : "l"(a.bits), "l"(b.bits), "r"(static_cast<int>(adds)) \
        : "memory"); \
  }

#define CUPY_FLASH_MULTIPLY_16(T, TYPE) \
  template <> \
  __device__ __forceinline__ void multiply_group<T, false>(float(&d)[16][4], const unsigned (&a)[4], \
                                                           MatrixDescriptor b, bool adds) { \
    asm volatile( \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n" \
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " {" CUPY_FLASH_PLACES_16 \
        "}, {%64, %65, %66, %67}, %68, p, 1, 1, 0;\n}\n" \
        : CUPY_FLASH_SUMS_16(d) \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(static_cast<int>(adds)) \
        : "memory"); \
  } \
  template <> \
  __device__ __forceinline__ void multiply_group<T, true>(float(&d)[16][4], const unsigned (&a)[4], \
                                                          MatrixDescriptor b, bool adds) { \
    asm volatile( \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n" \
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " {" CUPY_FLASH_PLACES_16 \
        "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}\n" \
        : CUPY_FLASH_SUMS_16(d) \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(static_cast<int>(adds)) \
        : "memory"); \
  } \
  template <> \
  __device__ __forceinline__ void multiply_group<T>(float(&d)[16][4], MatrixDescriptor a, \
                                                    MatrixDescriptor b, bool adds) { \
    asm volatile( \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n" \
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " {" CUPY_FLASH_PLACES_16 \
        "}, %64, %65, p, 1, 1, 0, 0;\n}\n" \
        : CUPY_FLASH_SUMS_16(d) \
        : "l"(a.bits), "l"(b.bits), "r"(static_cast<int>(adds)) \
        : "memory"); \
  }

CUPY_FLASH_MULTIPLY_8(Float16, "f16")
CUPY_FLASH_MULTIPLY_8(BFloat16, "bf16")
CUPY_FLASH_MULTIPLY_16(Float16, "f16")
CUPY_FLASH_MULTIPLY_16(BFloat16, "bf16")

#undef CUPY_FLASH_MULTIPLY_16
#undef CUPY_FLASH_MULTIPLY_8
#undef CUPY_FLASH_PLACES_16
#undef CUPY_FLASH_PLACES_8
#undef CUPY_FLASH_SUMS_16
#undef CUPY_FLASH_SUMS_8
#undef CUPY_FLASH_EIGHT

#endif
