// Addresses in the 32-bit space of shared memory, which ldmatrix and cp.async take, and accesses of 16
// bytes there (PTX ISA, "ld.shared.v4", "st.shared.v4"). Addresses are multiples of 16.
#pragma once

struct alignas(16) Words4 {
  unsigned word[4];
};

#ifdef CUPY_FLASH_EMULATE

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return emu::shared_offset(pointer);
}

__device__ __forceinline__ Words4 load_shared(unsigned address) {
  return emu::load_shared<Words4>(address);
}

__device__ __forceinline__ void store_shared(unsigned address, const Words4& words) {
  emu::store_shared(address, words);
}

__device__ __forceinline__ void store_shared(unsigned address, unsigned short value) {
  emu::store_shared(address, value);
}

#else

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Ordered with the accesses through pointers, which the compiler can't tell to be to the same memory.
__device__ __forceinline__ Words4 load_shared(unsigned address) {
  Words4 words;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.word[0]), "=r"(words.word[1]), "=r"(words.word[2]), "=r"(words.word[3])
               : "r"(address)
               : "memory");
  return words;
}

__device__ __forceinline__ void store_shared(unsigned address, const Words4& words) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
               :
               : "r"(address), "r"(words.word[0]), "r"(words.word[1]), "r"(words.word[2]),
                 "r"(words.word[3])
               : "memory");
}

__device__ __forceinline__ void store_shared(unsigned address, unsigned short value) {
  asm volatile("st.shared.u16 [%0], %1;" : : "r"(address), "h"(value) : "memory");
}

#endif
