// Addresses in the 32-bit space of shared memory, which ldmatrix and cp.async take, and accesses of 1 to 16
// bytes there (PTX ISA, "ld.shared", "st.shared"). Addresses are multiples of so many bytes.
#pragma once

struct alignas(16) Words4 {
  unsigned word[4];
};

struct alignas(8) Words2 {
  unsigned word[2];
};

// Ordered with the accesses through pointers, which the compiler can't tell to be to the same memory.
template <class T>
__device__ __forceinline__ T load_shared(unsigned address);

#ifdef CUPY_FLASH_EMULATE

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return emu::shared_offset(pointer);
}

template <class T>
__device__ __forceinline__ T load_shared(unsigned address) {
  return emu::load_shared<T>(address);
}

template <class T>
__device__ __forceinline__ void store_shared(unsigned address, const T& value) {
  emu::store_shared(address, value);
}

#else

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

template <>
__device__ __forceinline__ Words4 load_shared<Words4>(unsigned address) {
  Words4 words;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.word[0]), "=r"(words.word[1]), "=r"(words.word[2]), "=r"(words.word[3])
               : "r"(address)
               : "memory");
  return words;
}

template <>
__device__ __forceinline__ Words2 load_shared<Words2>(unsigned address) {
  Words2 words;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
               : "=r"(words.word[0]), "=r"(words.word[1])
               : "r"(address)
               : "memory");
  return words;
}

template <>
__device__ __forceinline__ unsigned load_shared<unsigned>(unsigned address) {
  unsigned word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}

// Into a register of 32 bits, where no instruction widens it.
template <>
__device__ __forceinline__ unsigned short load_shared<unsigned short>(unsigned address) {
  unsigned value;
  asm volatile("ld.shared.u16 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return static_cast<unsigned short>(value);
}

template <>
__device__ __forceinline__ unsigned char load_shared<unsigned char>(unsigned address) {
  unsigned value;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return static_cast<unsigned char>(value);
}

__device__ __forceinline__ void store_shared(unsigned address, const Words4& words) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
               :
               : "r"(address), "r"(words.word[0]), "r"(words.word[1]), "r"(words.word[2]),
                 "r"(words.word[3])
               : "memory");
}

__device__ __forceinline__ void store_shared(unsigned address, unsigned value) {
  asm volatile("st.shared.u32 [%0], %1;" : : "r"(address), "r"(value) : "memory");
}

__device__ __forceinline__ void store_shared(unsigned address, unsigned short value) {
  asm volatile("st.shared.u16 [%0], %1;" : : "r"(address), "h"(value) : "memory");
}

__device__ __forceinline__ void store_shared(unsigned address, unsigned char value) {
  asm volatile("st.shared.u8 [%0], %1;"
               :
               : "r"(address), "r"(static_cast<unsigned>(value))
               : "memory");
}

#endif
